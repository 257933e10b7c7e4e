"""The start of a Keras script."""

import contextlib
from collections.abc import Iterator
from typing import Unpack

import keras

from rung import core
from rung.keras import exactness
from rung.keras.exchange import exchange_of, part_with
from rung.loop import keras_seeds
from rung.loop.seeding import Arguments, started


@contextlib.contextmanager
def init(**arguments: Unpack[Arguments]) -> Iterator[core.Context]:
    """Yield the run that this process is; every generator is seeded, Keras' own included.

    Where the run has several slots, this is one of its ranks, and they are together.

    Make the model inside. The arguments are those of `rung.core.init`.
    """
    with started(**arguments) as run:
        exchange_of(run)  # before TensorFlow works
        keras.utils.set_random_seed(run.seed & 0xFFFFFFFF)
        keras_seeds.make(run.seed)
        exactness.demand(run)
        yield run
        part_with(run)
