"""The experiment file as a whole."""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from rung.config.sections.data import Data, no_data
from rung.config.sections.entrypoint import Entrypoint
from rung.config.sections.environment import Environment
from rung.config.sections.hyperparameter import Group
from rung.config.sections.length import Length
from rung.config.sections.log_policy import LogPolicy, few
from rung.config.sections.resources import Resources
from rung.config.sections.searcher import Searcher
from rung.config.sections.secrets import Secrets
from rung.config.sections.section import AS_WHOLE, Flag, Natural, Positive, Section, Text, Whole
from rung.config.sections.storage import CheckpointStorage, OwnStorage
from rung.config.unsupported import (
    BindMount,
    Integrations,
    Optimizations,
    Pbs,
    Profiling,
    RetentionPolicy,
    Security,
    Slurm,
    TensorboardStorage,
)
from rung.methods.method import TRIALS_MAX

SEED_MAX: Final = 2**31 - 1
_LOG_DAYS_MAX: Final = 36_500
_LOG_BYTES_MIN: Final = 4096


class Reproducibility(Section):
    """Seed of the search, determinism and resuming of its trials."""

    experiment_seed: Annotated[int, Field(ge=0, le=SEED_MAX), AS_WHOLE] | None = None
    """Seed of the search and, through it, of every trial; absent: drawn at submission."""
    first_trial: Annotated[int, Field(ge=0, le=TRIALS_MAX), AS_WHOLE] = 0
    """How many draws of the seed's sequence to leave out, because another search trained them; for
    methods that draw hyperparameters."""
    continue_source: Flag = False
    """Whether a `single` trial goes on where searcher.source_trial_id ended, with its progress,
    generators and position in the data, rather than from its weights alone."""
    deterministic: Flag = False
    """Whether trials refuse operations that give other results each time, as some do on GPUs."""
    exact: Flag = True
    """Whether trials with Keras, Lightning, Transformers or TensorFlow resume within an epoch, bit
    for bit, and are refused with a framework of another version than was tested; `false`: they
    resume at their last checkpoint, by public interfaces only."""


class Distributed(Section):
    """How the processes of a trial find each other and share its work; one process per slot."""

    launcher: Literal["torch", "horovod", "tensorflow", "none"] = "torch"
    """Framework for which the environment of the processes is set up; `none`: one process on each
    machine."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How `rung.torch` distributes models: a copy on each slot (`ddp`), or a part (`fsdp`)."""
    backend: Literal["gloo", "nccl"] | None = None
    """Backend of torch.distributed; absent: nccl where each slot is a GPU, else gloo."""
    interface: Text | None = None
    """Network interface between machines, such as `eth0`; absent: the agent's choice."""
    sync_batch_norm: Flag = False
    """Whether batch normalisation is computed over the batches of all slots, on GPUs."""
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
    """Name of the experiment; absent: a made-up name."""
    description: str | None = None
    """What the experiment is about, in the author's words."""
    labels: Annotated[list[Text], BeforeValidator(_distinct)] = Field(default_factory=list)
    """Words by which the experiment can be found."""
    workspace: str = ""
    """Workspace of the experiment, by name, given together with project; absent: `default`."""
    project: str = ""
    """Project in the workspace, by name; absent: `default`."""
    entrypoint: Entrypoint
    """The command that trains one trial: text for a shell, or a list of arguments."""
    hyperparameters: Group = Field(default_factory=lambda: Group({}))
    """Hyperparameters by name: constants, ranges, choices, and groups of these."""
    searcher: Searcher
    """The search method and its options."""
    resources: Resources = Field(default_factory=Resources)
    """Slots, resource pool and priority of the experiment."""
    distributed: Distributed | None = None
    """How a trial's processes work together, where it has several slots."""
    checkpoint_storage: CheckpointStorage = Field(default_factory=OwnStorage)
    """Where checkpoints go, and which are kept."""
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    """After which validations a checkpoint is stored: the best so far, all, or none."""
    min_validation_period: Length | None = None
    """Validate at least this often; absent: each epoch; 0: only where the search compares trials
    (the rungs and the length)."""
    min_checkpoint_period: Length | None = None
    """Checkpoint at least this often; absent: at a period chosen from what a checkpoint costs; 0:
    only where a run leaves or its validation asks for one."""
    perform_initial_validation: Flag = False
    """Whether a trial validates before its first step."""
    scheduling_unit: Positive = 100
    """Batches between two reports of training metrics."""
    records_per_epoch: Whole = 0
    """Records in one epoch; 0: as many as the data loader has."""
    max_restarts: Natural = 5
    """How many times a trial that fails is started again."""
    preemption_timeout: Natural | None = None
    """Seconds that a preempted trial has to checkpoint and exit before it is killed; absent:
    3600."""
    hang_timeout: Natural = 0
    """Seconds without a report or a checkpoint after which a trial is taken to hang, killed and
    started again; 0: never."""
    reproducibility: Reproducibility = Field(default_factory=Reproducibility)
    """Seed of the search, determinism and resuming of its trials."""
    data: Data = Field(default_factory=no_data)
    """Free map for the script; `sources` names data that agents fetch for the trials."""
    environment: Environment = Field(default_factory=Environment)
    """What a trial's processes find around them."""
    secrets: Secrets | None = None
    """Secrets of the workspace that trials get, and variables whose values are secrets."""
    profiling: Profiling = Field(default_factory=Profiling)
    """When the machine is profiled."""
    logs: Logs = Field(default_factory=Logs)
    """How much of what trials print is kept, and for how long."""
    log_policies: Annotated[list[LogPolicy], AfterValidator(few)] = Field(default_factory=list)
    """What is done when a line of a trial's log matches a pattern."""
    retention_policy: RetentionPolicy | None = None
    """How long the experiment's logs are kept."""
    bind_mounts: list[BindMount] = Field(default_factory=list)
    """Folders of the host that a trial's container sees."""
    optimizations: Optimizations = Field(default_factory=Optimizations)
    """Accumulation of gradients, and old switches of distributed training."""
    integrations: Integrations | None = None
    """Integrations with other services."""
    slurm: Slurm = Field(default_factory=Slurm)
    """Options for clusters that Slurm schedules."""
    pbs: Pbs = Field(default_factory=Pbs)
    """Options for clusters that PBS schedules."""
    security: Security | None = None
    """A field of older files."""
    tensorboard_storage: TensorboardStorage | None = None
    """A field of older files."""
    data_layer: DataLayer | None = None
    """A field of older files."""
    debug: Flag = False
    """A field of older files."""
    internal: Annotated[None, BeforeValidator(_nothing), WithJsonSchema({"type": "null"})] = None
    """Reserved for the platform; must be absent."""


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
