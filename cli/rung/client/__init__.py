"""A typed client of Rung's HTTP API.

    async with AsyncClient(url, token) as client:
        submitted = await client.submit(Path("experiment.yaml").read_text())

`Client` has the same methods for scripts without an event loop.
"""

from rung.client._answer import (
    ENDED,
    BestAnswer,
    BestTrial,
    BestValue,
    Checkpoint,
    CheckpointDetail,
    CheckpointFile,
    CheckpointList,
    Experiment,
    ExperimentCurves,
    ExperimentList,
    ExperimentSummary,
    LogLine,
    LogPage,
    Plan,
    Requested,
    Submitted,
    Trial,
    TrialCurve,
    TrialDetail,
    TrialList,
    Validated,
    Validation,
)
from rung.client._client import Action, AsyncClient, Level
from rung.client._error import (
    ClientError,
    Conflict,
    Invalid,
    NotFound,
    ProblemItem,
    ServerFailed,
    Unauthorized,
    Unreachable,
)
from rung.client._installation import (
    Agent,
    AgentList,
    Audit,
    DeadLetter,
    DeadLetterList,
    PoolStatus,
    Queue,
    QueueItem,
    Status,
)
from rung.client._sse import ServerEvent
from rung.client._sync import Client
from rung.client._transport import Location

__all__ = [
    "ENDED",
    "Action",
    "Agent",
    "AgentList",
    "AsyncClient",
    "Audit",
    "BestAnswer",
    "BestTrial",
    "BestValue",
    "Checkpoint",
    "CheckpointDetail",
    "CheckpointFile",
    "CheckpointList",
    "Client",
    "ClientError",
    "Conflict",
    "DeadLetter",
    "DeadLetterList",
    "Experiment",
    "ExperimentCurves",
    "ExperimentList",
    "ExperimentSummary",
    "Invalid",
    "Level",
    "Location",
    "LogLine",
    "LogPage",
    "NotFound",
    "Plan",
    "PoolStatus",
    "ProblemItem",
    "Queue",
    "QueueItem",
    "Requested",
    "ServerEvent",
    "ServerFailed",
    "Status",
    "Submitted",
    "Trial",
    "TrialCurve",
    "TrialDetail",
    "TrialList",
    "Unauthorized",
    "Unreachable",
    "Validated",
    "Validation",
]
