"""A function as a trial: what it may return and report, and how it ends."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rung import core
from rung.function import Run
from rung.function.code_folder import ABOUT, FOLDER, FUNCTION, SOURCE, About
from rung.function.run import Leaving, NoResult

SEARCHER = {"name": "random", "metric": "loss", "time_metric": "steps"}


class Reports:
    """The reports of a run, with the steps at which they were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, int, dict[str, Any]]] = []
        original = core.TrainContext.report_metrics

        def report(train: Any, group: str, steps: int, metrics: Any) -> None:
            original(train, group, steps, metrics)
            self.made.append((group, steps, dict(metrics)))

        monkeypatch.setattr(core.TrainContext, "report_metrics", report)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Return what is reported."""
    return Reports(monkeypatch)


def _run(tmp_path: Path, length: int | None, restore: str | None = None) -> core.Context:
    searcher = SEARCHER if length is None else {**SEARCHER, "max_time": length}
    config = {"searcher": searcher}
    return core.init(hparams={"x": 2}, config=config, storage=tmp_path, restore=restore)


def test_the_loop_has_the_length_of_the_search(tmp_path: Path, reports: Reports) -> None:
    """A report counts for its step; with the metric it is a validation, else training."""
    with _run(tmp_path, 3) as context:
        run = Run(context)
        for step in run:
            run.report(seen=step)
            run.report(1.0 / run.step, other=2)
        run.finish(None)
    assert reports.made == [
        it
        for step in (1, 2, 3)
        for it in (
            ("training", step, {"seen": step - 1}),
            ("validation", step, {"loss": 1.0 / step, "other": 2}),
        )
    ]


@pytest.mark.parametrize("returned", [0.5, {"loss": 0.5}])
def test_what_is_returned_is_the_metric(tmp_path: Path, reports: Reports, returned: Any) -> None:
    """A number, or metrics by name; at the first step where there are no others."""
    with _run(tmp_path, 1) as context:
        Run(context).finish(returned)
    assert reports.made == [("validation", 1, {"loss": 0.5})]


def test_what_is_returned_after_a_report_of_the_step_is_not_reported_again(
    tmp_path: Path, reports: Reports
) -> None:
    """The function of a habit: reports each epoch, and returns the last value."""
    with _run(tmp_path, 2) as context:
        run = Run(context)
        for _ in run:
            run.report(loss=1)
        run.finish(1)
    assert [steps for _, steps, _ in reports.made] == [1, 2]


@pytest.mark.parametrize(
    ("made", "returned", "says"),
    [
        ({}, None, "the function returned nothing and reported nothing: return 'loss'"),
        ({"los": 1}, None, "the function reported 'los' and never 'loss', the metric"),
        ({}, {"los": 1}, "the function returned 'los' and not 'loss'"),
    ],
)
def test_a_function_without_a_result_is_refused(
    tmp_path: Path, made: dict[str, float], returned: Any, says: str
) -> None:
    """The message says what is missing, and what there was."""
    with _run(tmp_path, 1) as context:
        run = Run(context)
        for _ in run:
            if made:
                run.report(made)
        with pytest.raises(NoResult, match=says):
            run.finish(returned)


def test_a_loop_of_its_own_leaves_after_one_more_pass(tmp_path: Path) -> None:
    """The pass in which the length was reached may store a checkpoint; the next report leaves."""
    with _run(tmp_path, 3) as context:
        run = Run(context)
        for epoch in range(3):
            run.report(loss=epoch)
        with pytest.raises(Leaving):
            run.report(loss=3)


def test_a_loop_without_a_length_is_refused(tmp_path: Path) -> None:
    """It would never end."""
    with _run(tmp_path, None) as context, pytest.raises(TypeError, match="length=30"):
        next(iter(Run(context)))


def test_it_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    """Once the function looks at the files; one that does not begins at the beginning."""
    with _run(tmp_path, 4) as context:
        run = Run(context)
        for step in run:
            with run.checkpoint() as folder:
                (folder / "state").write_text(str(step))
            if step == 1:
                break
    stored = f"{run.trial_id}.1.2"

    with _run(tmp_path, 4, restore=stored) as context:
        run = Run(context)
        assert run.resumed is not None
        assert (run.resumed / "state").read_text() == "1"
        assert list(run) == [2, 3]
        run.close()
    with _run(tmp_path, 4, restore=stored) as context:
        assert list(Run(context)) == [0, 1, 2, 3]


def _called(folder: Path, about: About, pickled: bytes) -> subprocess.CompletedProcess[str]:
    """Call the function in a code folder by hand, as the entrypoint does."""
    (folder / FOLDER).mkdir()
    (folder / ABOUT).write_bytes(msgspec.json.encode(about))
    (folder / FUNCTION).write_bytes(pickled)
    (folder / SOURCE).write_text("")
    command = [sys.executable, "-m", "rung.function"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("python", "pickled", "says"),
    [
        (
            "2.7",
            b"",
            f"comes from Python 2.7, and this agent runs trials with Python {HERE}",
        ),
        (
            HERE,
            b"cno_such_module\nf\n.",
            "train uses the module 'no_such_module' (no_such_module 1.2), which",
        ),
        (HERE, b"cjson\nno_such_name\n.", "it was made with no_such_module 1.2: are the versions"),
    ],
)
def test_another_environment_says_what_to_do(
    tmp_path: Path, python: str, pickled: bytes, says: str
) -> None:
    """Another Python, a module that is missing, a module of another version."""
    about = About(
        name="train",
        takes_run=False,
        python=python,
        modules={"no_such_module": "1.2"},
        file="/nowhere.py",
    )
    ran = _called(tmp_path, about, pickled)
    assert ran.returncode == 1
    assert says in ran.stderr
