"""`rung delete`, `rung retention`: what is shown, asked and sent."""

from typing import Any

import pytest

from cli.conftest import EXPERIMENT, Rung
from support import recorded_answers
from support.scripted_server import Answer, Scripted, json_answer, problem

DELETE = f"{EXPERIMENT}/delete"
RETENTION = f"{EXPERIMENT}/retention"
CHECKPOINT = "/checkpoints/k3v9x2ab.0.1.1600"


def _deletion(**more: Any) -> dict[str, Any]:
    return {
        "experiment_id": "k3v9x2ab",
        "name": "digits [red]",
        "state": "completed",
        "dry_run": True,
        "trial_count": 2,
        "checkpoint_count": 1,
        "checkpoint_bytes": 2048,
        "log_lines": 1,
        "log_bytes": 1500,
        "code_shared": False,
        "dependents": [],
        "restorable_until": None,
    } | more


def _dependent(state: str = "completed") -> dict[str, Any]:
    return {"experiment_id": "p7w2n4qd", "name": "next", "state": state, "checkpoint_id": "c"}


def _gone(kind: str) -> Answer:
    return problem(410, "it is deleted", type=f"urn:rung:problem:{kind}")


def _terminal(monkeypatch: pytest.MonkeyPatch, *, says: bool) -> list[str]:
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return says

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", confirm)
    return asked


def test_delete_says_what_goes_and_waits(server: Scripted, rung: Rung) -> None:
    """With --yes it does not ask; it returns once the files are gone."""
    server.on(DELETE, json_answer(_deletion(), 202))
    server.on(f"{EXPERIMENT}/trials", _gone("deleting"), _gone("deleting"), _gone("deleted"))
    result = rung("delete", "k3v9x2ab", "--yes")
    assert result.code == 0
    for words in ("digits [red]", "2, with their metrics", "1 (2.0 KiB)", "1 line (1.5 KiB)"):
        assert words in result.out
    assert result.out.endswith("Experiment k3v9x2ab is deleted.\n")
    queries = [request.query for request in server.requested(DELETE)]
    assert queries == [{"dry_run": "true"}, {}]
    assert len(server.requested(f"{EXPERIMENT}/trials")) == 3


def test_a_dry_run_deletes_nothing(server: Scripted, rung: Rung) -> None:
    """It only says what would go; --json prints it."""
    server.on(DELETE, json_answer(_deletion(dependents=[_dependent()]), 202))
    result = rung("delete", "k3v9x2ab", "--dry-run")
    assert result.code == 0
    assert "Experiment p7w2n4qd (next, has completed) started from checkpoint c." in result.out
    assert rung("delete", "k3v9x2ab", "--dry-run", "--json").json == {
        "items": [_deletion(dependents=[_dependent()])]
    }
    assert {request.query["dry_run"] for request in server.requested(DELETE)} == {"true"}


def test_without_a_terminal_it_needs_yes(server: Scripted, rung: Rung) -> None:
    """A script that forgets --yes deletes nothing."""
    server.on(DELETE, json_answer(_deletion(), 202))
    result = rung("delete", "k3v9x2ab")
    assert (result.code, len(server.requested(DELETE))) == (2, 1)
    assert "--yes" in result.err


@pytest.mark.parametrize("says", [True, False])
def test_the_question_names_what_depends_on_it(
    server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch, *, says: bool
) -> None:
    """Who answers it with yes was shown them, so they are no obstacle any more."""
    server.on(DELETE, json_answer(_deletion(dependents=[_dependent()]), 202))
    server.on(f"{EXPERIMENT}/trials", _gone("deleted"))
    asked = _terminal(monkeypatch, says=says)
    result = rung("delete", "k3v9x2ab")
    assert asked == ["Delete it, although other experiments started from it?"]
    queries = [request.query for request in server.requested(DELETE)]
    assert queries == [{"dry_run": "true"}, *([{"force": "true"}] if says else [])]
    assert result.code == (0 if says else 1)


def test_a_checkpoint_is_deleted(server: Scripted, rung: Rung) -> None:
    """Its name has more dots than a trial's, or no experiment has it."""
    shown = {"checkpoint": recorded_answers.checkpoint(), "dry_run": True, "dependents": []}
    server.on(f"{CHECKPOINT}/delete", json_answer(shown, 202))
    detail = recorded_answers.checkpoint(state="deleted") | {"files": [], "metadata": {}}
    server.on(CHECKPOINT, json_answer(detail))
    assert rung("delete", "k3v9x2ab.0.1.1600", "--yes").out.endswith("is deleted.\n")
    server.on("/experiments/abc/delete", problem(404, "no such experiment"))
    server.on("/checkpoints/abc/delete", json_answer(shown, 202))
    assert rung("delete", "abc", "--yes").code == 0
    server.on("/checkpoints/abc/delete", problem(404, "no such checkpoint"))
    result = rung("delete", "abc", "--yes")
    assert (result.code, result.err) == (4, "Error: no such experiment\n")


def test_a_trial_is_not_deleted_by_itself(server: Scripted, rung: Rung) -> None:
    """The refusal says what can be."""
    result = rung("delete", "k3v9x2ab.0", "--yes")
    assert result.code == 2
    assert "rung checkpoints k3v9x2ab.0" in result.err
    assert not server.requests


def test_names_with_dots(server: Scripted, rung: Rung) -> None:
    """They are an experiment's, a trial's or a checkpoint's, whatever they look like."""
    found = {"kind": "experiment", "id": "k3v9x2ab", "experiment_id": "k3v9x2ab"}
    server.on("/find", json_answer(found))
    server.on(f"{EXPERIMENT}/trials", _gone("deleted"))
    for name in ("lr0.1", "v1.5.2"):
        server.on(f"/experiments/{name}/delete", json_answer(_deletion(), 202))
        server.on(DELETE, json_answer(_deletion(), 202))
        assert rung("delete", name, "--yes").out.endswith("Experiment k3v9x2ab is deleted.\n")
    server.on("/find", json_answer(found | {"kind": "trial", "id": "k3v9x2ab.7"}))
    assert rung("delete", "digits.7", "--yes").code == 2


def test_what_is_in_use_is_refused(server: Scripted, rung: Rung) -> None:
    """The gateway's reason, and exit code 6."""
    server.on(DELETE, problem(409, "it has not ended"))
    result = rung("delete", "k3v9x2ab", "--yes")
    assert (result.code, result.err) == (6, "Error: it has not ended\n")


def _retention(items: list[dict[str, Any]]) -> dict[str, Any]:
    before = {"save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 1}
    return {
        "experiment_id": "k3v9x2ab",
        "dry_run": True,
        "before": before,
        "after": before | {"save_trial_latest": 0},
        "items": items,
        "size_bytes": 2048,
    }


def test_a_retention_is_shown_and_changed(server: Scripted, rung: Rung) -> None:
    """Without a number it is shown; with one, what goes is said first."""
    server.on(RETENTION, json_answer(_retention([recorded_answers.checkpoint()]), 202))
    shown = rung("retention", "k3v9x2ab")
    assert "latest of each trial  1" in shown.out
    assert [request.query for request in server.requested(RETENTION)] == [{"dry_run": "true"}]
    assert rung("retention", "k3v9x2ab", "--save-trial-latest", "0").code == 2
    done = rung("retention", "k3v9x2ab", "--save-trial-latest", "0", "--yes")
    assert done.code == 0
    assert "1 checkpoint (2.0 KiB) will be deleted." in done.out
    assert server.requested(RETENTION)[-1].query == {}
    assert rung("retention", "k3v9x2ab", "--save-trial-latest", "-1").code == 2


def test_a_retention_that_deletes_nothing_asks_nothing(server: Scripted, rung: Rung) -> None:
    """Keeping more is no danger."""
    server.on(RETENTION, json_answer(_retention([]), 202))
    result = rung("retention", "k3v9x2ab", "--save-trial-latest", "3")
    assert result.code == 0
    assert "No checkpoint is superfluous." in result.out
