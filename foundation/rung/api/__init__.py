"""What the HTTP API answers: one record per answer.

The gateway answers with them and makes its OpenAPI schemas from them; clients read them, and
ignore fields that they do not know.
"""

from rung.api.audit import Audit, Decision, Difference, Verdict
from rung.api.checkpoint import (
    Checkpoint,
    CheckpointDetail,
    CheckpointFile,
    CheckpointList,
)
from rung.api.experiment import (
    BestAnswer,
    BestTrial,
    BestValue,
    Experiment,
    ExperimentList,
    ExperimentSummary,
    MoveAsked,
    Plan,
    Requested,
    Submitted,
    Trial,
    TrialDetail,
    TrialList,
    Validated,
    Validation,
)
from rung.api.installation import (
    Agent,
    AgentList,
    DeadLetter,
    DeadLetterList,
    Health,
    PoolStatus,
    Queue,
    QueueItem,
    SlotUse,
    Status,
)
from rung.api.problem import ProblemDocument, ProblemItem
from rung.api.seal import SealProblem, SealReport, Unsealed
from rung.api.series import (
    CurvePoint,
    ExperimentCurves,
    LogLine,
    LogPage,
    LogsCollected,
    LogsOf,
    MetricName,
    TrialCurve,
)
from rung.api.states import ENDED, CheckpointPhase, ExperimentPhase, Time, TrialPhase

__all__ = [
    "ENDED",
    "Agent",
    "AgentList",
    "Audit",
    "BestAnswer",
    "BestTrial",
    "BestValue",
    "Checkpoint",
    "CheckpointDetail",
    "CheckpointFile",
    "CheckpointList",
    "CheckpointPhase",
    "CurvePoint",
    "DeadLetter",
    "DeadLetterList",
    "Decision",
    "Difference",
    "Experiment",
    "ExperimentCurves",
    "ExperimentList",
    "ExperimentPhase",
    "ExperimentSummary",
    "Health",
    "LogLine",
    "LogPage",
    "LogsCollected",
    "LogsOf",
    "MetricName",
    "MoveAsked",
    "Plan",
    "PoolStatus",
    "ProblemDocument",
    "ProblemItem",
    "Queue",
    "QueueItem",
    "Requested",
    "SealProblem",
    "SealReport",
    "SlotUse",
    "Status",
    "Submitted",
    "Time",
    "Trial",
    "TrialCurve",
    "TrialDetail",
    "TrialList",
    "TrialPhase",
    "Unsealed",
    "Validated",
    "Validation",
    "Verdict",
]
