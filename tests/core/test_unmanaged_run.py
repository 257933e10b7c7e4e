"""A script started by hand: the same code path, without a platform."""

from pathlib import Path

import pytest

from rung import core
from rung.core._unmanaged_run import typical


@pytest.fixture(autouse=True)
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, not as a run of Rung's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNG_ALLOCATION", raising=False)


def test_everything_works_without_rung(capsys: pytest.CaptureFixture[str]) -> None:
    """Reports are shown, checkpoints are kept, and nothing ever asks the script to leave."""
    with core.init(hparams={"lr": 0.5}, seed=3) as ctx:
        assert (ctx.hparams, ctx.seed) == ({"lr": 0.5}, 3)
        assert not ctx.info.managed
        assert ctx.checkpoint.download_latest() is None
        ctx.train.report_training_metrics(1, {"loss": 1.0, "event": 2.0})
        ctx.train.report_validation_metrics(1, {"anything": 1.0})
        with ctx.checkpoint.store_path(steps_completed=1) as (path, checkpoint_id):
            (path / "state").write_text("one")
        assert ctx.train.get_experiment_best_validation() is None
        assert not ctx.preempt.should_preempt()
    assert core.get_info() is None
    shown = capsys.readouterr().out
    assert "training" in shown
    assert "validation" in shown
    with core.init(restore=checkpoint_id) as ctx:
        latest = ctx.checkpoint.download_latest()
        assert latest == checkpoint_id
        with ctx.checkpoint.restore_path(latest) as path:
            assert (path / "state").read_text() == "one"
    assert (Path("rung-local") / "checkpoints").is_dir()


def test_the_same_mistakes_are_refused() -> None:
    """A string is no metric here either, and there may be no more than fit into a report."""
    with core.init() as ctx, pytest.raises(core.ReportRefused):
        ctx.train.report_training_metrics(1, {"loss": "low"})
    with core.init() as ctx, pytest.raises(core.ReportRefused):
        ctx.train.report_training_metrics(1, {f"loss{n}": 1.0 for n in range(40_000)})


def test_an_experiment_gives_hyperparameters_and_length() -> None:
    """With the file's content, the script trains the middle of the search space to its length."""
    config = {
        "hyperparameters": {"lr": {"type": "log", "minval": -3, "maxval": -1}},
        "searcher": {"metric": "loss", "time_metric": "epochs", "max_time": 4},
        "reproducibility": {"experiment_seed": 9},
    }
    with core.init(config=config) as ctx:
        assert ctx.hparams == {"lr": pytest.approx(0.01)}
        assert ctx.seed == 9
        assert (ctx.info.trial.length, ctx.info.trial.time_metric) == (4, "epochs")
        ctx.train.report_validation_metrics(100, {"loss": 1.0, "epochs": 4})
        assert ctx.preempt.should_preempt()


def test_a_local_run_takes_the_middle_of_every_range() -> None:
    """Constants stay, ranges give their middle, lists their first entry, groups their own."""
    space = {
        "a": 1,
        "b": {"type": "const", "val": [1, 2]},
        "c": {"type": "int", "minval": 2, "maxval": 6},
        "d": {"type": "double", "minval": 0.0, "maxval": 1.0},
        "e": {"type": "categorical", "vals": ["x", "y"]},
        "group": {"f": {"type": "log", "base": 2, "minval": 0, "maxval": 4}},
        "empty": {},
    }
    assert typical(space) == {
        "a": 1,
        "b": [1, 2],
        "c": 4,
        "d": 0.5,
        "e": "x",
        "group": {"f": 4.0},
        "empty": {},
    }
