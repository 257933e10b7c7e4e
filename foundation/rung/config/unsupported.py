"""Sections of Determined without effect in Rung: validated as Determined does, and accepted."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from rung.config.sections.section import AS_WHOLE, Flag, Natural, Positive, Section, Whole
from rung.config.sections.storage import S3, Gcs, SharedFs


def _absolute(value: str) -> str:
    if not PurePosixPath(value).is_absolute():
        raise PydanticCustomError("host_path", "must be an absolute path")
    return value


def _not_dot(value: str) -> str:
    if value == ".":
        raise PydanticCustomError("container_path", "must not be `.`")
    return value


class BindMount(Section):
    """A folder of the host that a container sees."""

    host_path: Annotated[str, AfterValidator(_absolute)]
    """The folder on the host."""
    container_path: Annotated[str, AfterValidator(_not_dot)]
    """Where the container sees it."""
    read_only: Flag = False
    """Whether it must not be written to."""
    propagation: str = "rprivate"
    """Propagation mode of the mount."""


class Optimizations(Section):
    """How `rung.torch` accumulates gradients, and old switches of distributed training."""

    aggregation_frequency: Positive = 1
    """How many batches make one step of the optimizer."""
    auto_tune_tensor_fusion: Flag = False
    """A field of older files."""
    average_aggregated_gradients: Flag = True
    """Whether such a step has the mean of their gradients, not the sum."""
    average_training_metrics: Flag = True
    """A field of older files."""
    gradient_compression: Flag = False
    """A field of older files."""
    grad_updates_size_file: str | None = None
    """A field of older files."""
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = "O0"
    """A field of older files."""
    tensor_fusion_cycle_time: Natural = 1
    """A field of older files."""
    tensor_fusion_threshold: Natural = 64
    """A field of older files."""


class Profiling(Section):
    """When the machine is profiled."""

    enabled: Flag = False
    """Whether the machine is profiled."""
    begin_on_batch: Natural = 0
    """First batch that is profiled."""
    end_after_batch: Natural | None = None
    """Last batch that is profiled."""
    sync_timings: Flag = True
    """Whether times are taken after the device is synchronised."""


class Slurm(Section):
    """Options for clusters that Slurm schedules."""

    slots_per_node: Positive | None = None
    """Slots on each node."""
    gpu_type: str | None = None
    """Kind of GPU to ask for."""
    sbatch_args: list[str] | None = None
    """Further arguments of sbatch."""


class Pbs(Section):
    """Options for clusters that PBS schedules."""

    slots_per_node: Positive | None = None
    """Slots on each node."""
    pbsbatch_args: list[str] | None = None
    """Further arguments of qsub."""


class Kerberos(Section):
    """A field of older files."""

    config_file: str
    """A field of older files."""


class Security(Section):
    """A field of older files."""

    kerberos: Kerberos | None = None
    """A field of older files."""


class PachydermPachd(Section):
    """Address of Pachyderm's daemon."""

    host: str
    """Its host."""
    port: Whole
    """Its port."""


class PachydermProxy(Section):
    """Address of Pachyderm's proxy."""

    scheme: str
    """http or https."""
    host: str
    """Its host."""
    port: Whole
    """Its port."""


class PachydermDataset(Section):
    """A data set in Pachyderm."""

    project: str
    """Its project."""
    repo: str
    """Its repository."""
    commit: str
    """Its commit."""
    branch: str
    """Its branch."""
    token: str
    """Access token."""


class Pachyderm(Section):
    """Lineage of data in Pachyderm."""

    pachd: PachydermPachd
    """Address of Pachyderm's daemon."""
    proxy: PachydermProxy
    """Address of Pachyderm's proxy."""
    dataset: PachydermDataset
    """The data set."""


class Webhooks(Section):
    """Webhooks that are notified of this experiment."""

    webhook_id: list[Whole] | None = None
    """Ids of the webhooks."""
    webhook_name: list[str] | None = None
    """Names of the webhooks."""
    exclude: Flag = False
    """Whether no webhook is notified."""


class Integrations(Section):
    """Integrations with other services."""

    pachyderm: Pachyderm | None = None
    """Lineage of data in Pachyderm."""
    webhooks: Webhooks | None = None
    """Webhooks that are notified of this experiment."""


class RetentionPolicy(Section):
    """How long the experiment's logs are kept."""

    log_retention_days: Annotated[int, Field(ge=-1, le=32767), AS_WHOLE]
    """Days to keep the logs; -1: for ever."""


TensorboardStorage = Annotated[
    Annotated[SharedFs, Tag("<shared_fs>")]
    | Annotated[S3, Tag("<s3>")]
    | Annotated[Gcs, Tag("<gcs>")],
    Discriminator(
        lambda value: (
            f"<{value.get('type') if isinstance(value, dict) else value.type}>"
            if isinstance(value, dict | Section)
            else "<>"
        ),
        custom_error_type="storage_type",
        custom_error_message="`type` must be one of shared_fs, s3, gcs",
    ),
]
