"""The experiment file as a whole."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from rung.config.sections.data import Data, no_data
from rung.config.sections.environment import Environment
from rung.config.sections.hyperparameter import Group
from rung.config.sections.length import Length, Unit
from rung.config.sections.resources import Resources
from rung.config.sections.searcher import Searcher
from rung.config.sections.section import AS_WHOLE, Flag, Natural, Positive, Section, Text, Whole
from rung.config.sections.storage import CheckpointStorage, OwnStorage
from rung.config.unsupported import (
    BindMount,
    Integrations,
    LogPolicy,
    Optimizations,
    Pbs,
    Profiling,
    RetentionPolicy,
    Security,
    Slurm,
    TensorboardStorage,
)

SEED_MAX: Final = 2**31 - 1
_LOG_DAYS_MAX: Final = 36_500
_LOG_BYTES_MIN: Final = 4096

_LEGACY_ENTRYPOINT: Final = re.compile(r"\s*[A-Za-z_][\w.]*:[A-Za-z_]\w*\s*")


class Reproducibility(Section):
    """Where chance comes from."""

    experiment_seed: Annotated[int, Field(ge=0, le=SEED_MAX), AS_WHOLE] | None = None
    """Seed of the search and, through it, of every trial; absent: drawn at submission."""
    deterministic: Flag = False
    """Whether trials refuse operations that give other results each time, as some do on GPUs."""


class Distributed(Section):
    """How the processes of a trial find each other and share its work; one process per slot."""

    launcher: Literal["torch", "horovod", "tensorflow", "none"] = "torch"
    """For which framework their environment is set up; `none`: one process per machine."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """What `rung.torch` does with models: a copy per slot, or a part per slot."""
    backend: Literal["gloo", "nccl"] | None = None
    """By what tensors travel; absent: nccl where each slot is a GPU, else gloo."""
    interface: Text | None = None
    """Network interface between machines, such as `eth0`; absent: the agent's choice."""
    sync_batch_norm: Flag = False
    """Whether batch normalisation sees the batches of all slots as one, on GPUs."""
    find_unused_parameters: Flag = False
    """Whether some parameters may get no gradient in a step, under `ddp`."""


class Logs(Section):
    """How much of what trials print is kept, and for how long; the installation may keep less."""

    keep_days: Annotated[int, Field(ge=1, le=_LOG_DAYS_MAX), AS_WHOLE] | None = None
    """Days after which printed lines are deleted; absent: as long as the installation keeps
    them."""
    max_bytes: Annotated[int, Field(ge=_LOG_BYTES_MIN), AS_WHOLE] | None = None
    """Bytes of a run's log as it is stored: its beginning and its last part are kept, and a mark
    says how many lines are missing between; absent: the installation's limit, 64 MiB."""


def _command(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise PydanticCustomError("entrypoint", "must be a command, such as `python3 train.py`")
    if isinstance(value, str) and _LEGACY_ENTRYPOINT.fullmatch(value):
        raise PydanticCustomError(
            "entrypoint",
            "`module:Class` is no longer run; write the command that starts the training, such as"
            " `python3 train.py`",
        )
    return value


def _never() -> dict[Unit, int]:
    return {"batches": 0}


Entrypoint = Annotated[
    Annotated[str, BeforeValidator(_command), Tag("<text>")]
    | Annotated[list[Text], Field(min_length=1), Tag("<list>")],
    Discriminator(lambda value: "<list>" if isinstance(value, list) else "<text>"),
]

DataLayer = dict[str, Any]


def _distinct(labels: Any) -> Any:
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        return list(dict.fromkeys(labels))
    return labels


def _nothing(_: Any) -> Any:
    raise PydanticCustomError("internal", "must be absent; it belongs to the platform")


class Experiment(Section):
    """An experiment: what to run, which hyperparameters to search, how, and with what."""

    name: Text | None = None
    """What to call the experiment; absent: a name is made up."""
    description: str | None = None
    """What it is about."""
    labels: Annotated[list[Text], BeforeValidator(_distinct)] = Field(default_factory=list)
    """Words to find it by."""
    workspace: str = ""
    """Workspace that it belongs to; together with project, or neither."""
    project: str = ""
    """Project within the workspace."""
    entrypoint: Entrypoint
    """The command that trains one trial: text for a shell, or a list of arguments."""
    hyperparameters: Group = Field(default_factory=lambda: Group({}))
    """Constants, ranges and choices, nested at will."""
    searcher: Searcher
    """How the search goes."""
    resources: Resources = Field(default_factory=Resources)
    """What it may use of the machines."""
    distributed: Distributed | None = None
    """How a trial's processes work together, where it has several slots."""
    checkpoint_storage: CheckpointStorage = Field(default_factory=OwnStorage)
    """Where checkpoints go, and which are kept."""
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    """Which validations are followed by a checkpoint: the best so far, all, none."""
    min_validation_period: Length = Field(default_factory=_never)
    """Validate at least this often; 0: only where the search compares trials (the rungs and the
    length)."""
    min_checkpoint_period: Length = Field(default_factory=_never)
    """Checkpoint at least this often; 0: only where the search asks for it."""
    perform_initial_validation: Flag = False
    """Whether to validate before the first step."""
    scheduling_unit: Positive = 100
    """Batches between reports of training metrics."""
    records_per_epoch: Whole = 0
    """Records in an epoch; 0: the data loader knows."""
    max_restarts: Natural = 5
    """How often a trial that fails is started again."""
    preemption_timeout: Natural | None = None
    """Seconds that a trial gets to checkpoint and leave; absent: 3600."""
    hang_timeout: Natural = 0
    """Seconds without a report or a checkpoint after which a trial is taken to hang, killed and
    started again; 0: never."""
    reproducibility: Reproducibility = Field(default_factory=Reproducibility)
    """Where chance comes from."""
    data: Data = Field(default_factory=no_data)
    """Whatever the script wants to know about its data; `sources` names where they are."""
    environment: Environment = Field(default_factory=Environment)
    """What a trial's processes find around them."""
    profiling: Profiling = Field(default_factory=Profiling)
    """When to measure the machine."""
    logs: Logs = Field(default_factory=Logs)
    """How much of what trials print is kept, and for how long."""
    log_policies: list[LogPolicy] = Field(default_factory=list)
    """What to do when a line of a trial's log matches."""
    retention_policy: RetentionPolicy | None = None
    """How long to keep what the experiment leaves."""
    bind_mounts: list[BindMount] = Field(default_factory=list)
    """Folders of the host that a trial's container sees."""
    optimizations: Optimizations = Field(default_factory=Optimizations)
    """Old switches of distributed training."""
    integrations: Integrations | None = None
    """Other services."""
    slurm: Slurm = Field(default_factory=Slurm)
    """For clusters run by Slurm."""
    pbs: Pbs = Field(default_factory=Pbs)
    """For clusters run by PBS."""
    security: Security | None = None
    """Historical."""
    tensorboard_storage: TensorboardStorage | None = None
    """Historical."""
    data_layer: DataLayer | None = None
    """Historical."""
    debug: Flag = False
    """Historical."""
    internal: Annotated[None, BeforeValidator(_nothing), WithJsonSchema({"type": "null"})] = None
    """Belongs to the platform."""


def json_schema() -> dict[str, Any]:
    """Return the experiment file's JSON Schema (draft 2020-12), for editors.

    It holds fields, types, limits, defaults and descriptions. `load` checks more: one field
    against another, and the size of a grid.
    """
    schema = Experiment.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rung experiment file",
        **{key: value for key, value in schema.items() if key != "title"},
    }
