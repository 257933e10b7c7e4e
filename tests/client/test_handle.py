"""An experiment in a script or a notebook, against recorded answers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rung.client import (
    Client,
    ClientError,
    Conflict,
    ExperimentFailed,
    ExperimentHandle,
    NotFound,
    Plot,
    _wait,
)
from rung.config.code_archive import InvalidCode
from rung.config.code_folder import pack
from support import recorded_answers
from support.scripted_server import TOKEN, Answer, Scripted, json_answer, problem

CONFIG = {"name": "digits", "searcher": {"metric": "error", "smaller_is_better": True}}


def _line(text: str, stream: str = "stderr") -> dict[str, Any]:
    return {
        "trial_id": "k3v9x2ab.0",
        "run": 1,
        "rank": 0,
        "stream": stream,
        "level": "error",
        "time_ms": 1,
        "text": text,
    }


@pytest.fixture
def client(server: Scripted) -> Iterator[Client]:
    """Return a client of a server with one experiment."""
    shown = recorded_answers.experiment(config=CONFIG)
    server.on("/experiments/k3v9x2ab", json_answer(shown))
    server.on(
        "/experiments/k3v9x2ab/trials",
        json_answer({"items": shown["trials"], "next_cursor": None}),
    )
    server.on("/experiments/k3v9x2ab/best", json_answer(recorded_answers.best()))
    submitted = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": ["mind this"]}
    server.on("POST /experiments", json_answer(submitted, 201))
    with Client(server.url, TOKEN) as made:
        yield made


@pytest.fixture
def handle(client: Client) -> ExperimentHandle:
    """Return a handle of the experiment."""
    return client.handle("k3v9x2ab")


@pytest.mark.parametrize("kind", ["path", "text path", "text", "bytes", "dict"])
def test_an_experiment_is_submitted_in_any_form(
    server: Scripted, client: Client, tmp_path: Path, kind: str
) -> None:
    """A file's path, its text, its fields; and the folder is packed."""
    file = tmp_path / "x.yaml"
    file.write_text('{"name": "digits"}')
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    config: Any = {
        "path": file,
        "text path": str(file),
        "text": file.read_text(),
        "bytes": file.read_bytes(),
        "dict": {"name": "digits"},
    }[kind]
    handle = client.submit(config, tmp_path / "code")
    (request,) = server.requested("/experiments")
    assert b'"name"' in request.body
    assert b"code.tar.gz" in request.body
    assert (handle.id, handle.experiment_id, handle.warnings) == (
        "k3v9x2ab",
        "k3v9x2ab",
        ["mind this"],
    )
    assert handle.url == f"{server.url}/#/x/k3v9x2ab"


def test_what_cannot_be_submitted_is_refused_here(client: Client, tmp_path: Path) -> None:
    """A file that is not there, a value that JSON does not have, a folder that is none."""
    with pytest.raises(ClientError, match=r"missing\.yaml cannot be read"):
        client.submit(tmp_path / "missing.yaml")
    with pytest.raises(ClientError, match=r"missing\.yaml cannot be read"):
        client.submit("missing.yaml")
    with pytest.raises(ClientError, match="is a type; an experiment file has numbers"):
        client.submit({"name": int})
    with pytest.raises(InvalidCode, match="is not a folder"):
        client.submit({"name": "x"}, tmp_path / "nothing")


def test_tables_are_frames_where_pandas_is(handle: ExperimentHandle) -> None:
    """With a column for each hyperparameter, and the metric by its name."""
    frame = handle.trials
    assert list(frame.columns) == [
        "trial",
        "state",
        "error",
        "steps",
        "params.lr",
        "params.opt.name",
        "params.opt.wd",
        "message",
    ]
    assert frame.sort_values("error").iloc[0]["trial"] == "k3v9x2ab.0"
    assert list(handle.validations.columns) == ["trial", "steps", "error", "epochs", "x"]


def test_tables_are_dicts_elsewhere(
    handle: ExperimentHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same keys in every row."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    first, second = handle.trials
    assert (first["trial"], first["error"], first["params.lr"]) == ("k3v9x2ab.0", 0.125, 0.01)
    assert first.keys() == second.keys()
    assert second["error"] is None


def test_curves(server: Scripted, handle: ExperimentHandle) -> None:
    """A row for each point of each trial."""
    curves = {"k3v9x2ab.0": [[1, 0.5, 7], [2, "NaN", 8]]}
    found = {"experiment_id": "k3v9x2ab", "kind": "training", "name": "loss", "names": []}
    server.on("/experiments/k3v9x2ab/metrics", json_answer(found | {"curves": curves}))
    frame = handle.curves("loss")
    assert frame["loss"].iloc[0] == 0.5
    assert frame["loss"].isna().tolist() == [False, True]
    svg = handle.plot("loss", kind="training").svg
    assert svg.count("<circle") == 2  # one point is finite: of the trial, and as the best's


def test_a_metric_is_found_in_its_group(server: Scripted, handle: ExperimentHandle) -> None:
    """The first group that has it; a name that no trial has reported is an error."""
    names = [
        {"kind": "system", "name": "cpu_percent"},
        {"kind": "validation", "name": "accuracy"},
        {"kind": "mine", "name": "accuracy"},
    ]
    base = {"experiment_id": "k3v9x2ab", "name": "accuracy", "names": names}
    path = "/experiments/k3v9x2ab/metrics"
    curves = {"k3v9x2ab.0": [[3, 0.5, 7]]}

    def answers() -> None:
        server.on(
            path,
            json_answer(base | {"kind": "training", "curves": {}}),
            json_answer(base | {"kind": "validation", "curves": curves}),
        )

    answers()
    assert handle.curves("accuracy")["accuracy"].tolist() == [0.5]
    answers()
    assert handle.plot("accuracy").svg.count("<circle") == 2
    for call in (lambda: handle.curves("acuracy"), lambda: handle.plot("x", kind="training")):
        server.on(path, json_answer(base | {"kind": "training", "curves": {}}))
        with pytest.raises(NotFound, match=r"has reported .*: accuracy \(validation"):
            call()


def test_system_metrics_are_drawn_over_seconds(server: Scripted, handle: ExperimentHandle) -> None:
    """Their steps are times, so curves begin at 0."""
    at = 1_700_000_000
    curves = {"k3v9x2ab.0": [[at, 0.5, at * 1000], [at + 5, 0.7, at * 1000 + 5000]]}
    found = {"experiment_id": "k3v9x2ab", "kind": "system", "name": "cpu_percent", "names": []}
    server.on("/experiments/k3v9x2ab/metrics", json_answer(found | {"curves": curves}))
    svg = handle.plot("cpu_percent", kind="system").svg
    assert ">seconds</text>" in svg
    assert "1.7e+09" not in svg
    assert "17000000" not in svg


def test_the_best_trial(server: Scripted, handle: ExperimentHandle, tmp_path: Path) -> None:
    """Its hyperparameters, value and checkpoint; one without a checkpoint says so."""
    best = handle.best()
    assert (best.trial_id, best.metric, best.value) == ("k3v9x2ab.0", "error", 0.125)
    assert best.params["lr"] == 0.01
    assert best.checkpoint is not None
    server.on("/experiments/k3v9x2ab/best", json_answer(recorded_answers.best(checkpoint=None)))
    with pytest.raises(Conflict, match=r"k3v9x2ab\.0 has no checkpoint"):
        handle.download(tmp_path / "out")


def test_logs_print_as_text(server: Scripted, handle: ExperimentHandle) -> None:
    """The last lines, the oldest of them first."""
    lines = [_line("second"), _line("first")]
    for path in ("/experiments/k3v9x2ab/logs", "/trials/k3v9x2ab.1/logs"):
        server.on(path, json_answer({"items": lines, "next_cursor": None}))
    assert str(handle.logs()) == "first\nsecond"
    assert [line.text for line in handle.logs(1, limit=2)] == ["first", "second"]
    (request,) = server.requested("/trials/k3v9x2ab.1/logs")
    assert request.query == {"order": "newest", "limit": "2"}


def test_waiting_returns_once_it_ended(
    server: Scripted, handle: ExperimentHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is noted at each change; a time limit is one."""
    monkeypatch.setattr(_wait, "POLL_S", 0.05)
    active = json_answer(recorded_answers.experiment("active", config=CONFIG))
    ended = json_answer(recorded_answers.experiment(config=CONFIG))
    server.on("/experiments/k3v9x2ab", active, active, ended)
    seen: list[str] = []
    assert handle.wait(note=lambda found: seen.append(found.state)) is handle
    assert seen == ["active", "active", "completed"]
    server.on("/experiments/k3v9x2ab", active)
    with pytest.raises(TimeoutError):
        handle.wait(timeout=0.2)


def test_waiting_for_a_failure_raises_the_traceback(
    server: Scripted, handle: ExperimentHandle
) -> None:
    """That of the first trial that failed, with what follows it; or it is not raised."""
    trials = [
        recorded_answers.trial(0),
        recorded_answers.trial(1, "errored", best=None, reason="failed once: exit code 1"),
    ]
    errored = recorded_answers.experiment(
        "errored", config=CONFIG, trials=trials, best=None, reason="1 errored"
    )
    server.on("/experiments/k3v9x2ab", json_answer(errored))
    printed = ["Traceback (most recent call last):", "  File x", "ValueError: no", "a note"]
    lines = [_line(text) for text in reversed(["earlier", *printed])]
    lines.insert(0, _line("between", "stdout"))
    server.on("/trials/k3v9x2ab.1/logs", json_answer({"items": lines, "next_cursor": None}))
    with pytest.raises(ExperimentFailed) as failed:
        handle.wait()
    assert failed.value.traceback == "\n".join(printed)
    assert str(failed.value).startswith(
        "experiment k3v9x2ab errored: 1 errored; no trial has a result\n\nTraceback"
    )
    assert failed.value.experiment.id == "k3v9x2ab"
    assert handle.wait(raise_on_error=False).state == "errored"
    server.on("/trials/k3v9x2ab.1/logs", json_answer({"items": [], "next_cursor": None}))
    with pytest.raises(ExperimentFailed, match="exit code 1"):
        handle.wait()


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "kill"])
def test_requests(server: Scripted, handle: ExperimentHandle, action: str) -> None:
    """Each has its method."""
    asked = {"experiment_id": "k3v9x2ab", "requested": action}
    server.on(f"POST /experiments/k3v9x2ab/{action}", json_answer(asked, 202))
    getattr(handle, action)()
    assert len(server.requested(f"/experiments/k3v9x2ab/{action}")) == 1


@pytest.mark.parametrize("trial", [7, "k3v9x2ab.7"])
def test_one_trial_is_killed_or_moved(
    server: Scripted, handle: ExperimentHandle, trial: int | str
) -> None:
    """By its number, or by its id."""
    asked = {"trial_id": "k3v9x2ab.7", "requested": "kill"}
    server.on("POST /trials/k3v9x2ab.7/kill", json_answer(asked, 202))
    moved = {"trial_id": "k3v9x2ab.7", "to": "other"}
    server.on("POST /trials/k3v9x2ab.7/move", json_answer(moved, 202))
    handle.kill_trial(trial)
    handle.move_trial(trial, to="other")
    assert len(server.requested("/trials/k3v9x2ab.7/kill")) == 1
    assert server.requested("/trials/k3v9x2ab.7/move")[0].query == {"to": "other"}


def test_a_search_is_extended(server: Scripted, handle: ExperimentHandle) -> None:
    """One that runs is returned itself; of one that has ended, the new one that goes on."""
    asked = {"experiment_id": "k3v9x2ab", "parent": None, "trials": 40, "max_time": None}
    new = {"experiment_id": "m4w8y3cd", "parent": "k3v9x2ab", "trials": None, "max_time": 9}
    path = "/experiments/k3v9x2ab/extend"
    server.on(f"POST {path}", json_answer(asked, 202), json_answer(new, 202))
    assert handle.extend(trials=40) is handle
    assert handle.extend(max_time=9).id == "m4w8y3cd"
    assert [each.query for each in server.requested(path)] == [{"trials": "40"}, {"max_time": "9"}]


def test_a_fork_has_the_code_and_the_changes(
    server: Scripted, client: Client, tmp_path: Path
) -> None:
    """Its file is that of the first one but for the changes; NumPy's numbers are plain ones."""
    (tmp_path / "train.py").write_text("print(1)")
    source = "name: digits\nsearcher: {name: random, max_trials: 4}  # few\n"
    shown = recorded_answers.experiment(source=source, code_digest="sha256:0")
    server.on("/experiments/k3v9x2ab", json_answer(shown))
    server.on("/experiments/k3v9x2ab/code", Answer(body=pack(tmp_path).data))
    submitted = {"experiment_id": "m4w8y3cd", "url": "/x", "warnings": []}
    server.on("POST /experiments", json_answer(submitted, 201))
    forked = client.handle("k3v9x2ab").fork({"searcher.max_trials": np.int64(40)})
    (request,) = server.requested("/experiments")
    assert forked.id == "m4w8y3cd"
    assert request.query == {"parent": "k3v9x2ab"}
    assert b"max_trials: 40" in request.body
    assert pack(tmp_path).data in request.body


def test_its_code_is_written_to_a_new_folder(
    server: Scripted, handle: ExperimentHandle, tmp_path: Path
) -> None:
    """As it ran; a folder that holds something is left as it is."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").write_text("print(1)")
    server.on("/experiments/k3v9x2ab/code", Answer(body=pack(tmp_path / "here").data))
    assert handle.code(tmp_path / "new" / "code") == tmp_path / "new" / "code"
    assert (tmp_path / "new" / "code" / "train.py").read_text() == "print(1)"
    with pytest.raises(ClientError, match="here is not empty"):
        handle.code(tmp_path / "here")


def test_it_is_deleted_and_keeps_fewer_checkpoints(
    server: Scripted, handle: ExperimentHandle
) -> None:
    """Each by the request of the client; a dry run only asks."""
    deletion = {
        "experiment_id": "k3v9x2ab", "name": "digits", "state": "completed", "dry_run": True,
        "trial_count": 2, "checkpoint_count": 1, "checkpoint_bytes": 10, "log_lines": None,
        "log_bytes": None, "code_shared": False, "dependents": [],
    }  # fmt: skip
    server.on("POST /experiments/k3v9x2ab/delete", json_answer(deletion, 202))
    kept = {"save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 1}
    retention = {
        "experiment_id": "k3v9x2ab", "dry_run": False, "before": kept, "after": kept,
        "items": [], "size_bytes": 0,
    }  # fmt: skip
    server.on("POST /experiments/k3v9x2ab/retention", json_answer(retention, 202))
    assert handle.delete(dry_run=True).checkpoint_bytes == 10
    assert handle.change_retention(save_trial_best=1).after.save_trial_best == 1
    (asked,) = server.requested("/experiments/k3v9x2ab/delete")
    assert asked.query == {"dry_run": "true"}


def test_an_unknown_experiment_is_refused_at_once(server: Scripted, client: Client) -> None:
    """Not at the first use of its handle."""
    server.on("/experiments/nothing", problem(404, "no experiment has the id nothing"))
    with pytest.raises(NotFound):
        client.handle("nothing")


def test_a_notebook_shows_it(handle: ExperimentHandle) -> None:
    """With a link and the best trials; what users wrote is escaped."""
    shown = handle._repr_html_()
    assert f'href="{handle.url}"' in shown
    assert "digits [red] (k3v9x2ab)" in shown
    assert "lr=0.01, opt.name=[bold]adam" in shown
    assert "k3v9x2ab.1" not in shown  # it has no value


def test_pictures(server: Scripted, handle: ExperimentHandle, tmp_path: Path) -> None:
    """A line for each trial with several validations, dots where each has one, or a text."""
    history = handle.plot()
    assert isinstance(history, Plot)
    assert history._repr_svg_().count("<circle") == 2
    points = [{"steps": step, "metrics": {"error": 1 / step**3}} for step in range(1, 9)]
    trials = [recorded_answers.trial(index, validations=points) for index in range(3)]
    server.on("/experiments/k3v9x2ab/trials", json_answer({"items": trials, "next_cursor": None}))
    lines = handle.plot()
    assert lines.svg.count("<polyline") == 4  # the best one's twice
    assert ">0.01<" in lines.svg  # a logarithmic axis
    lines.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text() == lines.svg
    with pytest.raises(ClientError, match=r"the picture is SVG; write x\.svg"):
        lines.save(tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
    found = {"experiment_id": "k3v9x2ab", "kind": "training", "name": "x<y", "names": []}
    server.on("/experiments/k3v9x2ab/metrics", json_answer(found | {"curves": {}}))
    assert "no x&lt;y was reported" in handle.plot("x<y").svg


def test_it_finds_rung_as_the_command_line_does(
    server: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By RUNG_URL and RUNG_TOKEN, else by the data folder; the message says what to start."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    monkeypatch.setenv("RUNG_DATA", str(tmp_path))
    monkeypatch.setenv("RUNG_URL", server.url)
    monkeypatch.setenv("RUNG_TOKEN", TOKEN)
    with Client() as client:
        assert client.experiments().items == []
        assert client.url == server.url
    monkeypatch.delenv("RUNG_URL")
    with Client() as client, pytest.raises(ClientError, match=f"rung up --data {tmp_path}"):
        client.experiments()


def test_a_client_that_is_not_closed_closes_with_its_process(server: Scripted) -> None:
    """Without a warning of open connections."""
    server.on("/experiments", json_answer({"items": [], "next_cursor": None}))
    text = f"from rung.client import Client; Client({server.url!r}, {TOKEN!r}).experiments()"
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", text]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr == ""


def test_plain_numbers_of_numpy_are_submitted(server: Scripted, client: Client) -> None:
    """As they come out of a script's calculations."""
    client.submit({"a": np.int64(5), "b": np.float32(0.5), "path": Path("x")})
    (request,) = server.requested("/experiments")
    assert msgspec.json.encode({"a": 5, "b": 0.5, "path": "x"}) in request.body
