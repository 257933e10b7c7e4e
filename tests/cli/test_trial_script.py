"""`rung report` and `rung checkpoint`: reports and checkpoints of a script in any language."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.conftest import Rung
from rung.core.ipc import environment, protocol
from rung.core.ipc.protocol import (
    Acknowledged,
    Fetch,
    Fetched,
    FromTrial,
    Hello,
    Preempt,
    Restored,
    Stored,
)
from support.agent_end import AgentEnd, agent_end, run_spec


class Asking(AgentEnd):
    """Asks each process that connects to leave."""

    def _take(self, connection: Any, line: bytes, stream: str) -> str:
        stream = super()._take(connection, line, stream)
        if isinstance(protocol.trial_decoder.decode(line), Hello):
            connection.sendall(protocol.frame(Preempt(30_000)))
        return stream


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
    monkeypatch.delenv(environment.ALLOCATION_VARIABLE, raising=False)
    result = rung("report", "--step", "1", "loss=0.5")
    assert (result.code, result.out) == (0, "")
    assert "loss" in result.err


def _be(agent: AgentEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in agent.environment.items():
        monkeypatch.setenv(name, value)


def test_files_come_back_in_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: Rung
) -> None:
    """With their step; a trial that begins is at step 0, and has no files."""
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "state"
    (state / "deep").mkdir(parents=True)
    (state / "deep" / "line").write_text("1 2")
    with agent_end(tmp_path / "agent") as agent:
        _be(agent, monkeypatch)
        assert rung("checkpoint", "restore", str(tmp_path / "new")).out == "0\n"
        assert not (tmp_path / "new").exists()
        for _ in range(2):
            result = rung("checkpoint", "save", "--step", "4", str(state))
            assert (result.code, result.out, result.err) == (0, "", "")
        agent.wait_for_end(3)
        stored = [message.checkpoint_id for message in agent.of(Stored)]
        assert stored == ["exp00000.3.1.4"]
        agent.spec = msgspec.structs.replace(agent.spec, run=2, restore=stored)
        _be(agent, monkeypatch)
        assert rung("checkpoint", "restore", str(tmp_path / "new")).out == "4\n"
        assert (tmp_path / "new" / "deep" / "line").read_text() == "1 2"
        agent.wait_for_end(4)
        assert [message.steps_completed for message in agent.of(Restored)] == [4]


def test_a_store_that_is_away_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: Rung
) -> None:
    """Where runs have no keys the files are staged, once for each step, and nobody is asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "line").write_text("1 2")
    with agent_end(tmp_path / "agent") as agent:
        _be(agent, monkeypatch)
        agent.staged = True

        def refuse(message: FromTrial) -> None:
            if isinstance(message, Fetch):
                agent.say(Fetched(message.number, problem="away"))

        agent.on_message = refuse
        results = [rung("checkpoint", "save", "--step", step, "state") for step in "445"]
        assert [(result.code, result.err) for result in results] == [(0, "")] * 3
        agent.wait_for_end(3)
        assert [message.steps_completed for message in agent.of(Stored)] == [4, 5]


def test_by_hand_there_is_nothing_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: Rung
) -> None:
    """The same script begins at step 0, and keeps its files in a folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(environment.ALLOCATION_VARIABLE, raising=False)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "line").write_text("1 2")
    assert rung("checkpoint", "restore", "state").out == "0\n"
    assert rung("checkpoint", "save", "--step", "1", "state").out == ""
    kept = [file.name for file in (tmp_path / "rung-local").rglob("*") if file.is_file()]
    assert "line" in kept
