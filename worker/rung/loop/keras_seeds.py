"""The generator that `keras.random` draws from where a script names no seed.

Keras makes it at its first use, which may be in the first step; then it is not yet there when a
run goes on from a checkpoint that holds its state. So it is made before.
"""

import random
from typing import Final

from keras.src.random import seed_generator  # no public name makes or finds it

from rung.torch import rng

_SHARED: Final = 7
"""What it begins with follows from this number, too."""


def make(seed: int) -> None:
    """Make the generator, unless it is there; Python's own, which Keras asks for a seed, rests."""
    before = random.getstate()
    random.seed(rng.derive(seed, _SHARED))
    seed_generator.global_seed_generator()
    random.setstate(before)
