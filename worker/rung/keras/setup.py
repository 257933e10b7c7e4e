"""The start of a Keras script."""

import contextlib
from collections.abc import Iterator
from typing import Unpack

import keras

from rung import core
from rung.keras import determinism
from rung.keras.collectives import exchange_of, part_with
from rung.training.introspection.seams import exact
from rung.training.setup import InitArguments, seeded_run


@contextlib.contextmanager
def init(**arguments: Unpack[InitArguments]) -> Iterator[core.Context]:
    """Yield the run that this process is; every generator is seeded, Keras' own included.

    Where the run has several slots, this is one of its ranks, and they are together.

    Make the model inside. The arguments are those of `rung.core.init`.
    """
    with seeded_run(**arguments) as run:
        exchange_of(run)  # before TensorFlow works
        keras.utils.set_random_seed(run.seed & 0xFFFFFFFF)
        if exact(run):
            from rung.keras.exact import ExactFit  # noqa: PLC0415 - checks Keras when imported

            ExactFit.shared_seeds(run)
        determinism.demand(run)
        yield run
        part_with(run)
