"""What makes TensorFlow exact, and what cannot be: told in the trial's log, not hidden."""

import os

import structlog
import tensorflow as tf

from rung import core
from rung.loop.seeding import deterministic

_log = structlog.get_logger("rung")


def demand_or_tell(run: core.Context) -> None:
    """Have operators be deterministic, if the experiment asks; or say where they are not."""
    if deterministic(run):
        tf.config.experimental.enable_op_determinism()
    elif run.distributed.is_chief and tf.config.list_physical_devices("GPU"):
        _log.warning(
            "operators on GPUs may add in another order each time; for the same bits set "
            "reproducibility: {deterministic: true}"
        )


def machine() -> dict[str, str]:
    """Return what the last bits of a result depend on, beside the program."""
    found = {"TensorFlow": tf.__version__, "processors": str(os.cpu_count())}
    for device in tf.config.list_physical_devices("GPU")[:1]:
        details = tf.config.experimental.get_device_details(device)
        found["GPU"] = str(details.get("device_name", "unknown"))
    return found
