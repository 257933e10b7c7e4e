"""How long TensorFlow's processes wait for each other: no public name sets that."""

from tensorflow.python.eager import context as eager


def be_patient(size: int, job: str, patience_ms: int) -> None:
    """Have the processes wait for each other; the strategy leaves alone what is set before it.

    Args:
        size: how many there are.
        job: what each of them is, in the cluster's words.
        patience_ms: how long one may be silent, or late.
    """
    context = eager.context()
    jobs = [eager.coordination_config_pb2.CoordinatedJob(name=job, num_tasks=size)]
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{job}/replica:0/task:0",
        cluster_register_timeout_in_ms=patience_ms,
        heartbeat_timeout_in_ms=patience_ms,
        coordinated_jobs=jobs,
    )
    context.coordination_service.cluster_register_with_barrier = True  # or the first waits an hour
