"""A typed client of Rung's HTTP API.

    client = Client()
    experiment = client.submit("experiment.yaml", "code").wait()
    print(experiment.best().params)

`Client()` finds the gateway as the command line does. `AsyncClient` has the same methods for
programs with an event loop, and the command line's. What that does not need is imported at first
use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rung.api import (
    BATCH_MAX,
    ENDED,
    Act,
    ActList,
    Agent,
    AgentList,
    Audit,
    BatchAction,
    BatchAnswer,
    BatchItem,
    BatchWanted,
    BestAnswer,
    BestTrial,
    BestValue,
    Checkpoint,
    CheckpointDeletion,
    CheckpointDetail,
    CheckpointFile,
    CheckpointList,
    DeadLetter,
    DeadLetterAsked,
    DeadLetterList,
    DeadLetterState,
    Dependent,
    Description,
    DescriptionWanted,
    Difference,
    DiskUse,
    Experiment,
    ExperimentCurves,
    ExperimentDeletion,
    ExperimentList,
    ExperimentSummary,
    Extended,
    Failure,
    Found,
    LogLine,
    LogPage,
    Moved,
    Plan,
    PoolConfigured,
    PoolStatus,
    ProblemItem,
    Queue,
    QueueItem,
    Requested,
    Resources,
    ResourcesWanted,
    Retention,
    RetentionAnswer,
    RetentionWanted,
    Rungs,
    Status,
    Submitted,
    Trial,
    TrialAsked,
    TrialCurve,
    TrialDetail,
    TrialList,
    Validated,
    Validation,
    Verdict,
)
from rung.client._client import (
    Action,
    ActQuery,
    AsyncClient,
    ExperimentQuery,
    Level,
    LogQuery,
    Order,
)
from rung.client._credentials import (
    Credential,
    credentials_path,
    forget_credential,
    keep_credential,
    read_credential,
)
from rung.client._error import (
    ClientError,
    Conflict,
    ExperimentFailed,
    Forbidden,
    Invalid,
    NotFound,
    ServerFailed,
    Unauthorized,
    Unreachable,
)
from rung.client._identity import Identity
from rung.client._location import Location, locate, of_environment, of_folder, of_url
from rung.client._sse import ServerEvent

if TYPE_CHECKING:
    from rung.client._handle import Best, ExperimentHandle, Logs
    from rung.client._plot import Plot
    from rung.client._sync import Client

__all__ = [
    "BATCH_MAX",
    "ENDED",
    "Act",
    "ActList",
    "ActQuery",
    "Action",
    "Agent",
    "AgentList",
    "AsyncClient",
    "Audit",
    "BatchAction",
    "BatchAnswer",
    "BatchItem",
    "BatchWanted",
    "Best",
    "BestAnswer",
    "BestTrial",
    "BestValue",
    "Checkpoint",
    "CheckpointDeletion",
    "CheckpointDetail",
    "CheckpointFile",
    "CheckpointList",
    "Client",
    "ClientError",
    "Conflict",
    "Credential",
    "DeadLetter",
    "DeadLetterAsked",
    "DeadLetterList",
    "DeadLetterState",
    "Dependent",
    "Description",
    "DescriptionWanted",
    "Difference",
    "DiskUse",
    "Experiment",
    "ExperimentCurves",
    "ExperimentDeletion",
    "ExperimentFailed",
    "ExperimentHandle",
    "ExperimentList",
    "ExperimentQuery",
    "ExperimentSummary",
    "Extended",
    "Failure",
    "Forbidden",
    "Found",
    "Identity",
    "Invalid",
    "Level",
    "Location",
    "LogLine",
    "LogPage",
    "LogQuery",
    "Logs",
    "Moved",
    "NotFound",
    "Order",
    "Plan",
    "Plot",
    "PoolConfigured",
    "PoolStatus",
    "ProblemItem",
    "Queue",
    "QueueItem",
    "Requested",
    "Resources",
    "ResourcesWanted",
    "Retention",
    "RetentionAnswer",
    "RetentionWanted",
    "Rungs",
    "ServerEvent",
    "ServerFailed",
    "Status",
    "Submitted",
    "Trial",
    "TrialAsked",
    "TrialCurve",
    "TrialDetail",
    "TrialList",
    "Unauthorized",
    "Unreachable",
    "Validated",
    "Validation",
    "Verdict",
    "credentials_path",
    "forget_credential",
    "keep_credential",
    "locate",
    "of_environment",
    "of_folder",
    "of_url",
    "read_credential",
]

_HOMES: Final = {
    "Best": "rung.client._handle",
    "Client": "rung.client._sync",
    "ExperimentHandle": "rung.client._handle",
    "Logs": "rung.client._handle",
    "Plot": "rung.client._plot",
}
"""Name → the module that has it, of those imported at first use."""


def __getattr__(name: str) -> Any:
    """Return one of the names imported at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
