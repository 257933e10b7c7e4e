"""The ranks of a run in TensorFlow, for Keras and for loops of one's own.

A `MultiWorkerMirroredStrategy` connects the processes (gRPC on CPUs, NCCL on GPUs), which nothing
else in TensorFlow's public interface does; nobody trains under it. Where `TF_CONFIG` is given it
says where the processes are, as with `launcher: tensorflow`. Elsewhere each takes a port and tells
the others, over `ctx.distributed`.
"""

import os
import socket
from contextlib import ExitStack, closing
from typing import Any, Final
from urllib.parse import urlsplit

import tensorflow as tf

from rung import core
from rung.agent.network import ReservedPort
from rung.core import protocol
from rung.core.star import RanksApart
from rung.loop.errors import NotJoined
from rung.loop.section import section_of

PATIENCE_MS: Final = 600_000
"""How long a process may be silent, or late. That one died is for the agent to see, which kills
the others; TensorFlow's own ten seconds are too short for a machine that is busy."""
_LAUNCHERS: Final = ("torch", "tensorflow")
_VARIABLE: Final = "TF_CONFIG"
_JOB: Final = "worker"
_PROBE_PORT: Final = 9
"""Nothing is sent to it."""


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
    section_of(run, door, *(() if told else _LAUNCHERS))
    try:
        with ExitStack() as ports:
            resolver = _told(ranks) if told else _met(ranks, ports)
            _be_patient(ranks.size)
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
    chief = urlsplit(f"//{os.environ[protocol.CHIEF_VARIABLE]}").hostname
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


def _be_patient(size: int) -> None:
    """Have the processes wait for each other; the strategy leaves alone what is set before it.

    There is no public way to say so.
    """
    try:
        from tensorflow.python.eager import context as eager  # noqa: PLC0415 - not public, so it may go
    except ImportError:
        return
    context = eager.context()
    jobs = [eager.coordination_config_pb2.CoordinatedJob(name=_JOB, num_tasks=size)]
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{_JOB}/replica:0/task:0",
        cluster_register_timeout_in_ms=PATIENCE_MS,
        heartbeat_timeout_in_ms=PATIENCE_MS,
        coordinated_jobs=jobs,
    )
    context.coordination_service.cluster_register_with_barrier = True  # or the first waits an hour
