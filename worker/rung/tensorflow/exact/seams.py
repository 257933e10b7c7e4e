"""Private interfaces of TensorFlow that exact resuming needs, as data."""

from typing import Final

from rung.training.introspection.seams import AddOn, Kind, Seam

_EAGER: Final = "tensorflow.python.eager.context"
_PLACE: Final = "a run that resumes trains on other batches than one that was never interrupted"
_PATIENCE: Final = "a process on a busy machine is taken for dead after 10 s, and the trial fails"

ADD_ON: Final = AddOn(
    framework="TensorFlow",
    module="tensorflow",
    package="tensorflow",
    lowest="2.19",
    newest="2.21",
    without="a run resumes at the beginning of the epoch in which its last checkpoint was made",
    seams=(
        Seam("tensorflow.python.data.ops.dataset_ops:DatasetV2._inputs", Kind.ATTRIBUTE, _PLACE),
        Seam("tensorflow.python.data.ops.shuffle_op:_ShuffleDataset", Kind.ATTRIBUTE, _PLACE),
        Seam(
            "tensorflow.python.data.ops.shuffle_op:_ShuffleDataset.__init__",
            Kind.NAMES,
            _PLACE,
            ("_reshuffle_each_iteration",),
        ),
        Seam(
            "tensorflow.python.data.experimental.ops.shuffle_ops:_ShuffleAndRepeatDataset",
            Kind.ATTRIBUTE,
            _PLACE,
        ),
        Seam("tensorflow.python.data.ops.repeat_op:_RepeatDataset", Kind.ATTRIBUTE, _PLACE),
        Seam("tensorflow.python.data.ops.zip_op:_ZipDataset", Kind.ATTRIBUTE, _PLACE),
        Seam(
            "keras.src.random.seed_generator:global_seed_generator",
            Kind.ATTRIBUTE,
            "what draws without a seed draws other numbers in a run that resumes",
        ),
        Seam(f"{_EAGER}:context", Kind.ATTRIBUTE, _PATIENCE),
        Seam(
            f"{_EAGER}:coordination_config_pb2.CoordinatedJob",
            Kind.FIELDS,
            _PATIENCE,
            ("name", "num_tasks"),
        ),
        Seam(
            f"{_EAGER}:coordination_config_pb2.CoordinationServiceConfig",
            Kind.FIELDS,
            _PATIENCE,
            ("cluster_register_with_barrier",),
        ),
        Seam(f"{_EAGER}:Context.coordination_service", Kind.ATTRIBUTE, _PATIENCE),
        Seam(
            f"{_EAGER}:Context.configure_coordination_service",
            Kind.LOCALS,
            _PATIENCE,
            (
                "service_type",
                "service_leader",
                "cluster_register_timeout_in_ms",
                "heartbeat_timeout_in_ms",
                "coordinated_jobs",
            ),
        ),
    ),
)
