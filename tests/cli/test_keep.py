"""`rung checkpoint`: a script in any language keeps its files and gets them back."""

from pathlib import Path

import msgspec
import pytest

from cli.conftest import Rung
from core.agent_end import AgentEnd, agent_end
from rung.core import protocol
from rung.core.protocol import Fetch, Fetched, FromTrial, Restored, Stored


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
    monkeypatch.delenv(protocol.ALLOCATION_VARIABLE, raising=False)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "line").write_text("1 2")
    assert rung("checkpoint", "restore", "state").out == "0\n"
    assert rung("checkpoint", "save", "--step", "1", "state").out == ""
    kept = [file.name for file in (tmp_path / "rung-local").rglob("*") if file.is_file()]
    assert "line" in kept
