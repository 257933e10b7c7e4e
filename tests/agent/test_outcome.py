"""Judging how a run ended."""

import pytest

from rung.agent.outcome import MESSAGE_CHARACTERS_MAX, Conduct, ending_of
from rung.agent.wire import Exited
from rung.events.trial import ExitOutcome


@pytest.mark.parametrize(
    ("code", "signal", "conduct", "outcome"),
    [
        (0, None, Conduct(), "finished"),
        (0, None, Conduct(acknowledged=True), "finished"),
        (0, None, Conduct(asked_to_leave=True), "finished"),
        (0, None, Conduct(asked_to_leave=True, acknowledged=True), "preempted"),
        (0, None, Conduct(asked_to_leave=True, sent_sigterm=True), "preempted"),
        (0, None, Conduct(sent_sigkill="late"), "finished"),
        (0, None, Conduct(refusal="no"), "invalid_hp"),
        (1, None, Conduct(refusal="no"), "invalid_hp"),
        (1, None, Conduct(), "failed"),
        (1, None, Conduct(asked_to_leave=True, acknowledged=True), "failed"),
        (143, None, Conduct(asked_to_leave=True, sent_sigterm=True), "killed"),
        (None, 9, Conduct(), "failed"),
        (None, 9, Conduct(sent_sigkill="as asked"), "killed"),
        (None, 11, Conduct(sent_sigkill="as asked"), "failed"),
        (None, 15, Conduct(), "failed"),
        (None, 15, Conduct(sent_sigterm=True), "killed"),
        (None, 40, Conduct(), "failed"),
    ],
)
def test_outcomes(
    code: int | None, signal: int | None, conduct: Conduct, outcome: ExitOutcome
) -> None:
    """The outcome follows from the exit and from what passed before, as the table says."""
    ending = ending_of(Exited("a", code, signal, 0), conduct, "")
    assert (ending.outcome, ending.code, ending.signal) == (outcome, code, signal)


def test_message_is_bounded() -> None:
    """A long last line is cut."""
    ending = ending_of(Exited("a", 1, None, 0), Conduct(), "x" * 5000)
    assert len(ending.message) == MESSAGE_CHARACTERS_MAX
