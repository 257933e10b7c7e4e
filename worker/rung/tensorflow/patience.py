"""How long TensorFlow's processes wait for each other."""

from typing import Final

_PATIENCE_MS: Final = 600_000
"""How long a process may be silent. That one died is for the agent to see, which kills the others;
TensorFlow's own ten seconds are too short for a machine that is busy."""


def be_patient(size: int) -> None:
    """Have the processes wait for each other; the strategy leaves alone what is set before it.

    There is no public way to say so.

    Args:
        size: how many processes there are, each a `worker` of TensorFlow's cluster.
    """
    try:
        from tensorflow.python.eager import context as eager  # noqa: PLC0415 - not public, so it may go
    except ImportError:
        return
    jobs = [eager.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=size)]
    eager.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=_PATIENCE_MS,
        heartbeat_timeout_in_ms=_PATIENCE_MS,
        coordinated_jobs=jobs,
    )
