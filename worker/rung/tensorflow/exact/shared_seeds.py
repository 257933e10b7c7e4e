"""The generator that `keras.random` draws from where a script names no seed."""

from typing import Any

from keras.src.random import seed_generator  # no public name makes or finds it

from rung.training.rng import isolated
from rung.training.seeds import Domain, derive


def shared_seeds(seed: int) -> Any:
    """Return its state.

    Keras makes it at its first use, which may be in the first step; then it is not yet there when
    a run resumes from a checkpoint that holds its state. So it is made here, unless it is there;
    Keras asks Python's own generator for its seed.
    """
    with isolated(derive(seed, Domain.KERAS)):
        return seed_generator.global_seed_generator().state
