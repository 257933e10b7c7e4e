"""One example of every event, for the documentation and for the tests that hold it true."""

from typing import Final

from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AllocationAddressed,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    AllocationRequested,
    AllocationSignaled,
    AllocationWithdrawn,
    DrainRequested,
    MoveRequested,
    Share,
    Slot,
)
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointPinned,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.envelope import Payload
from rung.events.experiment import (
    BracketPlan,
    CancelRequested,
    ExperimentEnded,
    ExperimentPaused,
    ExperimentResumed,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    ResumeRequested,
    SearchPlanned,
)
from rung.events.ledger_import import (
    ImportCompleted,
    ImportedKey,
    ImportKeysListed,
    ImportStarted,
)
from rung.events.metric import (
    AgentBeat,
    LogLine,
    LogsPrinted,
    MessageRejected,
    MetricRow,
    MetricsReported,
)
from rung.events.trial import (
    RunEnded,
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialClosed,
    TrialEnded,
    TrialExited,
    TrialPromoted,
    TrialRequested,
    TrialRestored,
    TrialStarted,
    TrialStopped,
    TrialValidated,
)

_E: Final = "k3f9x2ma"
_T: Final = "k3f9x2ma.17"
_A: Final = "k3f9x2ma.17.2"
_C: Final = "0f8e2c61-6f0a-4f3e-9a57-3f1f0c1de0aa"
_LEDGER: Final = "5d0c1b7e-3f46-4a52-9b3d-7e8f21c6a904"
_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_SPEC: Final = RunSpec(
    experiment_id=_E,
    trial_id=_T,
    trial_index=17,
    run=2,
    hparams={"learning_rate": 0.01, "layers": {"width": 32}},
    seed=1714,
    length=9,
    time_metric="epochs",
    restore=[_C],
    code_digest=_DIGEST,
    config={"name": "digits", "entrypoint": "python3 train.py"},
)

EXAMPLES: Final[tuple[Payload, ...]] = (
    ExperimentSubmitted(
        experiment_id=_E,
        config={"name": "digits", "searcher": {"name": "hyperband", "max_time": 9}},
        source="name: digits\n",
        code_digest=_DIGEST,
    ),
    PauseRequested(experiment_id=_E),
    ResumeRequested(experiment_id=_E),
    CancelRequested(experiment_id=_E),
    KillRequested(experiment_id=_E),
    SearchPlanned(
        experiment_id=_E,
        method="hyperband",
        time_metric="epochs",
        brackets=[BracketPlan(bracket=0, lengths=[1, 3, 9], trials=9)],
    ),
    ExperimentPaused(experiment_id=_E),
    ExperimentResumed(experiment_id=_E),
    ExperimentEnded(experiment_id=_E, state="completed", reason="17 of 17 trials are closed"),
    TrialRequested(
        experiment_id=_E,
        trial_id=_T,
        index=17,
        bracket=0,
        hparams={"learning_rate": 0.01, "layers": {"width": 32}},
        seed=1714,
    ),
    RunRequested(
        experiment_id=_E,
        pool="default",
        slots=1,
        priority=42,
        max_slots=None,
        reason="promoted to rung 2",
        spec=_SPEC,
    ),
    RunWithdrawn(
        experiment_id=_E,
        trial_id=_T,
        run=2,
        pool="default",
        how="preempt",
        reason="the experiment was paused",
    ),
    TrialPromoted(
        experiment_id=_E,
        trial_id=_T,
        rung=2,
        length=9,
        reason="1st of 3 in rung 1 of bracket 0, the best 1 go on",
    ),
    TrialStopped(
        experiment_id=_E,
        trial_id=_T,
        rung=1,
        reason="3rd of 3 in rung 1 of bracket 0, the best 1 go on",
    ),
    TrialClosed(
        experiment_id=_E, trial_id=_T, state="completed", reason="trained 9 epochs", restarts=1
    ),
    TrialStarted(experiment_id=_E, trial_id=_T, run=2, agent_id="node-a"),
    TrialRestored(experiment_id=_E, trial_id=_T, run=2, checkpoint_id=_C, steps_completed=300),
    TrialValidated(
        experiment_id=_E,
        trial_id=_T,
        run=2,
        steps_completed=900,
        metrics={"validation_error": 0.021, "validation_loss": "NaN"},
    ),
    TrialExited(
        experiment_id=_E,
        trial_id=_T,
        run=2,
        agent_id="node-a",
        outcome="failed",
        exit_code=None,
        signal=9,
        message="killed by SIGKILL",
        fault="host_memory",
        steps_completed=900,
    ),
    RunEnded(experiment_id=_E, trial_id=_T, run=2, outcome="lost", reason="agent node-a was lost"),
    TrialEnded(experiment_id=_E, trial_id=_T),
    CheckpointStored(
        experiment_id=_E,
        trial_id=_T,
        run=2,
        checkpoint_id=_C,
        steps_completed=900,
        size_bytes=1_048_576,
        files=3,
        digest=_DIGEST,
    ),
    CheckpointDamaged(
        experiment_id=_E,
        trial_id=_T,
        run=3,
        checkpoint_id=_C,
        reason="state.pt: 1024 bytes, the manifest says 1048576",
    ),
    CheckpointPinned(experiment_id=_E, checkpoint_id=_C, by="p7w2n4qd"),
    CheckpointRetired(
        experiment_id=_E,
        trial_id=_T,
        checkpoint_id=_C,
        reason="not among best 1 and latest 1 of its trial",
    ),
    CheckpointDeleted(experiment_id=_E, trial_id=_T, checkpoint_id=_C),
    AgentJoined(
        pool="default",
        agent_id="node-a",
        incarnation=4,
        hostname="node-a.lab",
        slots=[Slot(id=0, kind="cuda", name="NVIDIA H200")],
    ),
    DrainRequested(
        pool="default",
        agent_id="node-a",
        incarnation=4,
        reason="the cloud preempts this machine",
    ),
    AgentLeft(pool="default", agent_id="node-a", incarnation=4),
    AgentLost(pool="default", agent_id="node-a", incarnation=4, silent_ms=30_412),
    AllocationRequested(
        pool="default",
        allocation_id=_A,
        experiment_id=_E,
        slots=1,
        priority=42,
        max_slots=None,
        spec=_SPEC,
    ),
    AllocationWithdrawn(pool="default", allocation_id=_A, how="preempt"),
    MoveRequested(pool="default", experiment_id=_E, trial_id=_T, to="node-b"),
    AllocationReleased(pool="default", allocation_id=_A, agent_id="node-a", incarnation=4),
    AllocationAddressed(
        pool="default",
        allocation_id=_A,
        agent_id="node-a",
        incarnation=4,
        host="10.0.0.7",
        ports=[40113, 40114],
        key="6b1f",
    ),
    AllocationGranted(
        pool="default",
        allocation_id=_A,
        shares=[Share(agent_id="node-a", incarnation=4, slots=[0])],
        spec=_SPEC,
    ),
    AllocationSignaled(pool="default", allocation_id=_A, agents=["node-a"], how="preempt"),
    AllocationLost(
        pool="default",
        allocation_id=_A,
        experiment_id=_E,
        trial_id=_T,
        run=2,
        reason="agent node-a was lost",
    ),
    AllocationDropped(
        pool="default",
        allocation_id=_A,
        experiment_id=_E,
        trial_id=_T,
        run=2,
        reason="withdrawn before it was placed",
    ),
    MetricsReported(
        experiment_id=_E,
        trial_id=_T,
        run=2,
        rows=[
            MetricRow(kind="training", step=100, time_ms=1_767_225_600_000, values={"loss": 1.5})
        ],
    ),
    LogsPrinted(
        experiment_id=_E,
        trial_id=_T,
        run=2,
        lines=[
            LogLine(
                rank=0,
                stream="stdout",
                level="info",
                time_ms=1_767_225_600_000,
                text="epoch 1 done",
            )
        ],
    ),
    AgentBeat(pool="default", agent_id="node-a", incarnation=4, allocations=[_A]),
    MessageRejected(
        topic="experiments",
        partition=0,
        position=1207,
        key=_E,
        reader="searcher",
        reason="not an event: JSON is malformed",
        value="{",
    ),
    ImportStarted(
        ledger_id=_LEDGER,
        import_id=_DIGEST,
        exported_from="b8d3c0f2-94a5-4c1e-8f0e-2a6c7d1b5e43",
        exported_by="0.1.0",
        experiment=None,
        records=1834,
        experiments=2,
        starts={"experiments": [0, 12], "searches": [0, 7]},
    ),
    ImportKeysListed(
        ledger_id=_LEDGER,
        import_id=_DIGEST,
        part=0,
        keys=[ImportedKey(topic="searches", key=_E, records=61, digest=_DIGEST)],
    ),
    ImportCompleted(
        ledger_id=_LEDGER, import_id=_DIGEST, records=1834, forwarded=2, lost=1, undeleted=0
    ),
)
