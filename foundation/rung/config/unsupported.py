"""Sections of Determined without effect in Rung: validated as Determined does, and accepted."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
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
    """How the mount propagates."""


class Optimizations(Section):
    """How `rung.torch` accumulates gradients, and old switches of distributed training."""

    aggregation_frequency: Positive = 1
    """How many batches make one step of the optimizer."""
    auto_tune_tensor_fusion: Flag = False
    """Historical."""
    average_aggregated_gradients: Flag = True
    """Whether such a step has the mean of their gradients, not the sum."""
    average_training_metrics: Flag = True
    """Historical."""
    gradient_compression: Flag = False
    """Historical."""
    grad_updates_size_file: str | None = None
    """Historical."""
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = "O0"
    """Historical."""
    tensor_fusion_cycle_time: Natural = 1
    """Historical."""
    tensor_fusion_threshold: Natural = 64
    """Historical."""


class Profiling(Section):
    """When to measure the machine."""

    enabled: Flag = False
    """Whether to measure."""
    begin_on_batch: Natural = 0
    """From which batch on."""
    end_after_batch: Natural | None = None
    """Up to which batch."""
    sync_timings: Flag = True
    """Whether to wait for the device before taking the time."""


class Slurm(Section):
    """For clusters run by Slurm."""

    slots_per_node: Positive | None = None
    """Slots on each node."""
    gpu_type: str | None = None
    """Kind of GPU to ask for."""
    sbatch_args: list[str] | None = None
    """Further arguments of sbatch."""


class Pbs(Section):
    """For clusters run by PBS."""

    slots_per_node: Positive | None = None
    """Slots on each node."""
    pbsbatch_args: list[str] | None = None
    """Further arguments of qsub."""


class Kerberos(Section):
    """Historical."""

    config_file: str
    """Historical."""


class Security(Section):
    """Historical."""

    kerberos: Kerberos | None = None
    """Historical."""


class PachydermPachd(Section):
    """Where Pachyderm runs."""

    host: str
    """Its host."""
    port: Whole
    """Its port."""


class PachydermProxy(Section):
    """Where Pachyderm is reached."""

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
    """What to log in with."""


class Pachyderm(Section):
    """Lineage of data in Pachyderm."""

    pachd: PachydermPachd
    """Where Pachyderm runs."""
    proxy: PachydermProxy
    """Where Pachyderm is reached."""
    dataset: PachydermDataset
    """The data set."""


class Webhooks(Section):
    """Which webhooks hear of this experiment."""

    webhook_id: list[Whole] | None = None
    """By id."""
    webhook_name: list[str] | None = None
    """By name."""
    exclude: Flag = False
    """Whether none does."""


class Integrations(Section):
    """Other services."""

    pachyderm: Pachyderm | None = None
    """Lineage of data in Pachyderm."""
    webhooks: Webhooks | None = None
    """Which webhooks hear of this experiment."""


class LegacyLogAction(Section):
    """The older way to write a log policy's action."""

    type: Literal["cancel_retries", "exclude_node"]
    """What to do."""


def _action_tag(value: Any) -> str:
    return "<map>" if isinstance(value, dict | LegacyLogAction) else "<text>"


LogAction = Annotated[
    Annotated[Literal["cancel_retries", "exclude_node"], Tag("<text>")]
    | Annotated[LegacyLogAction, Tag("<map>")],
    Discriminator(_action_tag),
]


class LogPolicy(Section):
    """What to do when a line of a trial's log matches."""

    name: str | None = None
    """What to call it."""
    pattern: str | None = None
    """Regular expression; absent: the policy of that name is switched off."""
    action: LogAction | None = None
    """cancel_retries or exclude_node."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.name is None and self.pattern is None:
            raise PydanticCustomError("log_policy", "must have a `name`, and mostly a `pattern`")
        return self


class RetentionPolicy(Section):
    """How long to keep what an experiment leaves."""

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
