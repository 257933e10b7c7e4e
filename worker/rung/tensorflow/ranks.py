"""The ranks of a run in TensorFlow, for Keras and for loops of one's own.

A `MultiWorkerMirroredStrategy` connects the processes (gRPC on CPUs, NCCL on GPUs), which nothing
else in TensorFlow's public interface does; no training runs under it. `TF_CONFIG`, where it is
given, says where the processes are, as with `launcher: tensorflow`. Elsewhere each takes a port
and sends it to the others, over `ctx.distributed`.
"""

import os
import socket
from contextlib import ExitStack, closing
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
import tensorflow as tf

from rung import core
from rung.agent.rendezvous.network import ReservedPort
from rung.core import RanksApart
from rung.core.ipc import environment
from rung.training.distributed_config import distributed_config
from rung.training.errors import NotJoined
from rung.training.introspection.seams import exact

PATIENCE_MS: Final = 600_000
"""How long a process may be silent, or late. That one died is for the agent to see, which kills
the others; TensorFlow's own ten seconds are too short for a machine that is busy."""
_LAUNCHERS: Final = ("torch", "tensorflow")
_VARIABLE: Final = "TF_CONFIG"
_JOB: Final = "worker"
_PROBE_PORT: Final = 9
"""Nothing is sent to it."""
_log = structlog.get_logger("rung")


def joined(run: core.Context, door: str) -> Any:
    """Connect TensorFlow's runtimes of all ranks, each of which must call this.

    They stay connected until the process ends. One that ends earlier is missed by the others, so
    let there be a barrier before.

    Args:
        run: this process's.
        door: the module whose `init` this is part of.

    Returns:
        The strategy that connects them, to be kept; None where there is one rank.

    Raises:
        NotJoined: the experiment file asks for something else, TensorFlow has begun to work
            already, or not all ranks have come.
    """
    ranks = run.distributed
    if ranks.size == 1:
        return None
    told = _VARIABLE in os.environ
    distributed_config(run, door, *(() if told else _LAUNCHERS))
    try:
        with ExitStack() as ports:
            resolver = _told(ranks) if told else _met(ranks, ports)
            _be_patient(run)
            _take_device(ranks.local_rank)
            return tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except RuntimeError as error:
        raise NotJoined(
            "TensorFlow has begun to work before its processes were connected: on several slots "
            f"{door}.init() comes before anything that computes; call it first in the script "
            f"({error})"
        ) from error
    except (RanksApart, tf.errors.OpError) as error:
        raise NotJoined(
            f"not all of the run's {ranks.size} processes have come to {door}.init() within "
            f"{PATIENCE_MS / 1000:g} s of each other: each must call it, and their machines must "
            f"reach each other ({error})"
        ) from error


def _told(ranks: core.DistributedContext) -> Any:
    """Return where the environment says that all ranks are.

    Raises:
        NotJoined: it speaks of others.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    said = {job: len(tasks) for job, tasks in resolver.cluster_spec().as_dict().items()}
    if said != {_JOB: ranks.size} or resolver.task_id != ranks.rank:
        raise NotJoined(
            f"{_VARIABLE} speaks of {said} and of task {resolver.task_id}, but this is rank "
            f"{ranks.rank} of {ranks.size}, each a {_JOB}: take it out of the experiment file's "
            "environment_variables, so that Rung connects the ranks"
        )
    return resolver


def _met(ranks: core.DistributedContext, ports: ExitStack) -> Any:
    """Return where all ranks wait for each other, on ports that the system keeps for them."""
    chief = urlsplit(f"//{os.environ[environment.CHIEF_VARIABLE]}").hostname
    assert chief is not None
    host = _own_address(chief)
    port = ports.enter_context(closing(ReservedPort()))
    shown = f"[{host}]" if ":" in host else host
    workers = ranks.allgather(f"{shown}:{port.number}")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({_JOB: workers}),
        task_type=_JOB,
        task_id=ranks.rank,
        rpc_layer="grpc",
    )


def _own_address(chief: str) -> str:
    """Return this machine's address as the chief's machine sees it."""
    ((family, kind, number, _, address), *_) = socket.getaddrinfo(
        chief, _PROBE_PORT, type=socket.SOCK_DGRAM
    )
    with socket.socket(family, kind, number) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _take_device(local_rank: int) -> None:
    """Use one of the GPUs that all ranks on this machine see."""
    devices = tf.config.list_physical_devices("GPU")
    if len(devices) > 1:
        tf.config.set_visible_devices(devices[local_rank % len(devices)], "GPU")


def _be_patient(run: core.Context) -> None:
    """Have the processes wait for each other longer than TensorFlow's ten seconds."""
    if not exact(run):
        _log.warning(
            "with reproducibility: {exact: false} TensorFlow takes a process that is silent for "
            "ten seconds for dead: its interface for a longer time is not public"
        )
        return
    from rung.tensorflow.exact import be_patient  # noqa: PLC0415 - checks TensorFlow when imported

    be_patient(run.distributed.size, _JOB, PATIENCE_MS)
