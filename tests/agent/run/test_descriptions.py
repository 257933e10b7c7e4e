"""What a run says of its trial, as facts: status, metadata, progress, a checkpoint to delete."""

from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from rung.agent.objects.run_objects import RunObjects
from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.run.best_validations import BestValidations
from rung.agent.run.ipc_server import Connection
from rung.agent.run.termination import Termination
from rung.agent.run.trial_session import Handlers, TrialSession
from rung.agent.run.watchdog import Watchdog
from rung.core.ipc.protocol import (
    DeletionRequested,
    FromTrial,
    MetadataSet,
    ProgressReported,
    StatusSet,
)
from rung.events import Payload
from rung.events.checkpoint import CheckpointDeletionRequested
from rung.events.trial import TrialMetadataSet, TrialProgressReported, TrialStatusSet
from support.agent_end import run_spec

SPEC = run_spec()
ABOUT: dict[str, Any] = {"experiment_id": "exp00000", "trial_id": "exp00000.3", "run": 1}


def taken(message: FromTrial, rank: int = 0) -> Mock:
    """Return where a message of a process was recorded."""
    event_buffer: Mock = create_autospec(EventBuffer, instance=True)
    to = Handlers(
        event_buffer,
        create_autospec(Termination, instance=True),
        create_autospec(Watchdog, instance=True),
        create_autospec(RunObjects, instance=True),
        create_autospec(BestValidations, instance=True),
        Mock(),
        Mock(),
    )
    session = TrialSession("token", SPEC, 0, Mock(), to, {})
    session.received(create_autospec(Connection, instance=True, rank=rank, stream=""), message)
    return event_buffer


@pytest.mark.parametrize(
    ("message", "fact"),
    [
        (StatusSet("loading"), TrialStatusSet(**ABOUT, status="loading")),
        (MetadataSet({"a": [1]}), TrialMetadataSet(**ABOUT, metadata={"a": [1]})),
        (ProgressReported(1.0), TrialProgressReported(**ABOUT, progress=1.0)),
        (
            DeletionRequested("exp00000.12.2.40-1"),
            CheckpointDeletionRequested(
                experiment_id="exp00000",
                trial_id="exp00000.12",
                checkpoint_id="exp00000.12.2.40-1",
            ),
        ),
    ],
)
def test_each_means_a_fact(message: FromTrial, fact: Payload) -> None:
    """A deletion is asked for as a user's is, so nothing that is needed goes."""
    taken(message).put.assert_called_once_with(fact, {})
    taken(message, rank=1).put.assert_not_called()


@pytest.mark.parametrize(
    "message",
    [
        StatusSet("x" * 1001),
        MetadataSet({"a": "x" * 65_536}),
        ProgressReported(1.01),
        ProgressReported(-0.5),
        DeletionRequested("exp00001.0.1.5"),
        DeletionRequested("exp000001.0.1.5"),
        DeletionRequested("exp00000.0.1.5\n"),
        DeletionRequested("exp00000.0.1.../5"),
        DeletionRequested("0.1.5"),
    ],
    ids=str,
)
def test_what_is_not_believed(message: FromTrial) -> None:
    """Whatever a process writes on its socket: no large texts, and no other experiment's files."""
    event_buffer = taken(message)
    event_buffer.put.assert_not_called()
    event_buffer.note.assert_called_once()
