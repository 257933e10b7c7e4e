"""The start of a TensorFlow script."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final, Unpack

import keras
import tensorflow as tf

from rung import core
from rung.tensorflow import determinism
from rung.tensorflow.ranks import joined
from rung.training.introspection.seams import exact
from rung.training.setup import InitArguments, seeded_run

_WORD: Final = 0xFFFFFFFF


@contextlib.contextmanager
def init(**arguments: Unpack[InitArguments]) -> Iterator[core.Context]:
    """Yield the run that this process is; every generator is seeded, TensorFlow's included.

    Make models and data inside, for the run's processes are connected here and TensorFlow must
    not have worked before. The arguments are those of `rung.core.init`.
    """
    with seeded_run(**arguments) as run:
        strategy = joined(run, "rung.tensorflow")
        keras.utils.set_random_seed(run.seed & _WORD)
        shared_seeds(run)
        tf.random.set_seed(run.seed & _WORD)
        determinism.demand_or_tell(run)
        tf.random.set_global_generator(tf.random.Generator.from_seed(run.seed & _WORD))
        yield run
        run.distributed.barrier()  # a process that ends is missed by the others
        del strategy


def shared_seeds(run: core.Context) -> Any:
    """Return the state of the generator that unseeded draws of Keras share.

    None: the run is to do without exact resuming.

    Raises:
        SeamMissing: this version of TensorFlow does not have what exact resuming needs.
    """
    if not exact(run):
        return None
    from rung.tensorflow import exact as add_on  # noqa: PLC0415 - checks TensorFlow when imported

    return add_on.shared_seeds(run.seed)
