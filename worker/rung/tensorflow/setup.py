"""The start of a TensorFlow script."""

import contextlib
from collections.abc import Iterator
from typing import Final, Unpack

import keras
import tensorflow as tf

from rung import core
from rung.loop import keras_seeds, tensorflow_exactness
from rung.loop.seeding import Arguments, started
from rung.loop.tensorflow_ranks import joined

_WORD: Final = 0xFFFFFFFF


@contextlib.contextmanager
def init(**arguments: Unpack[Arguments]) -> Iterator[core.Context]:
    """Yield the run that this process is; every generator is seeded, TensorFlow's included.

    Make models and data inside, for the run's processes are connected here and TensorFlow must
    not have worked before. The arguments are those of `rung.core.init`.
    """
    with started(**arguments) as run:
        strategy = joined(run, "rung.tensorflow")
        keras.utils.set_random_seed(run.seed & _WORD)
        keras_seeds.make(run.seed)
        tf.random.set_seed(run.seed & _WORD)
        tensorflow_exactness.demand_or_tell(run)
        tf.random.set_global_generator(tf.random.Generator.from_seed(run.seed & _WORD))
        yield run
        run.distributed.barrier()  # a process that ends is missed by the others
        del strategy
