"""`rung report`: a script in any language reports, and hears when to leave."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Rung
from core.agent_end import AgentEnd, run_spec
from rung.core import protocol
from rung.core.protocol import Acknowledged, Hello, Preempt


class Asking(AgentEnd):
    """Asks each process that connects to leave."""

    def _take(self, connection: Any, line: bytes) -> None:
        super()._take(connection, line)
        if isinstance(protocol.trial_decoder.decode(line), Hello):
            connection.sendall(protocol.frame(Preempt(30_000)))


@pytest.fixture
def kind() -> type[AgentEnd]:
    """Return what the agent's end is."""
    return AgentEnd


@pytest.fixture
def agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[AgentEnd]
) -> Iterator[AgentEnd]:
    """Yield the agent of the run that this process is."""
    monkeypatch.chdir(tmp_path)
    agent = kind(tmp_path / "agent", run_spec(length=8))
    for name, value in agent.environment.items():
        monkeypatch.setenv(name, value)
    yield agent
    agent.close()


def test_reports_go_to_the_agent(agent: AgentEnd, rung: Rung) -> None:
    """Each kind is told apart; without one it is training; nothing is printed."""
    for arguments in (
        ["--step", "1", "loss=0.5", "rate=1e-3"],
        ["--validation", "--step", "2", "loss=nan"],
        ["--step", "3", "--group", "test", "loss=2"],
    ):
        result = rung("report", *arguments)
        assert (result.code, result.out, result.err) == (0, "", "")
    agent.wait_for_end(3)
    assert agent.reports("training") == [(1, {"loss": 0.5, "rate": 0.001})]
    assert agent.reports("validation") == [(2, {"loss": "NaN"})]
    assert agent.reports("test") == [(3, {"loss": 2.0})]


def test_a_run_at_its_length_is_told_to_leave(agent: AgentEnd, rung: Rung) -> None:
    """The validation that says so is answered with one word."""
    assert rung("report", "--step", "8", "--training", "loss=1").out == ""
    assert rung("report", "--step", "7", "--validation", "loss=1").out == ""
    assert rung("report", "--step", "8", "--validation", "loss=1").out == "leave\n"


@pytest.mark.parametrize("kind", [Asking])
def test_a_run_that_is_asked_is_told_to_leave(agent: AgentEnd, rung: Rung) -> None:
    """It is acknowledged; the order may be a moment behind the welcome, and is heard then."""
    answers = (rung("report", "--step", str(step), "loss=1").out for step in range(100))
    assert "leave\n" in answers
    agent.wait_for(lambda agent: bool(agent.of(Acknowledged)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--step", "1", "loss"], "name=number"),
        (["--step", "1", "loss=good"], "loss: 'good' is no number"),
        (["--step", "-1", "loss=1"], "--step"),
        (["loss=1"], "--step"),
        (["--step", "1"], "NAME=NUMBER"),
    ],
)
def test_wrong_usage_is_said(
    agent: AgentEnd, rung: Rung, arguments: list[str], words: str
) -> None:
    """In a line, and nothing is reported."""
    result = rung("report", *arguments)
    assert result.code == 2
    assert words in result.err
    assert agent.messages == []


def test_the_searchers_metric_is_asked_for(agent: AgentEnd, rung: Rung) -> None:
    """As in Python, a validation without it is refused."""
    result = rung("report", "--step", "1", "--validation", "error=1")
    assert result.code == 6
    assert "searcher.metric" in result.err


def test_by_hand_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: Rung) -> None:
    """On standard error, for a script reads the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(protocol.ALLOCATION_VARIABLE, raising=False)
    result = rung("report", "--step", "1", "loss=0.5")
    assert (result.code, result.out) == (0, "")
    assert "loss" in result.err
