"""Traces of the profiler lie in the TensorBoard folder, which is part of the checkpoints."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, schedule

from rung import torch as rt
from rung.core.ipc.protocol import Stored
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from .conftest import Start

FOLDER = ".rung-tensorboard"


class Profiled(PlainTrial):
    """Traces its second and third batch."""

    def __init__(self, context: rt.TrialContext) -> None:
        super().__init__(context)
        plan = schedule(wait=0, warmup=1, active=2, repeat=1)
        context.set_profiler(activities=[ProfilerActivity.CPU], schedule=plan)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit a line, under a name of its own."""
        with torch.profiler.record_function(f"batch {batch_idx}"):
            return super().train_batch(batch, epoch_idx, batch_idx)


def names_in(trace: Path) -> set[str]:
    """Return the names of what a trace holds."""
    return {
        it.get("name", "") for it in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    }


@pytest.mark.parametrize("length", [5, 2])
def test_the_batches_of_the_schedule_are_traced(start: Start, length: int) -> None:
    """Once they are over, or the run is, whichever comes first; the last checkpoint has it."""
    agent, context = start(config=CONFIG, length=length)
    rt.Trainer(Profiled(context), context).fit()
    finish(agent, context)
    [trace] = Path(FOLDER).glob("*.pt.trace.json.gz")
    batches = {name for name in names_in(trace) if name.startswith("batch ")}
    assert batches == {f"batch {number}" for number in range(1, min(length, 3))}
    [stored] = (Path(agent.path).parent / "objects").rglob(trace.name)
    assert stored.parent.name == "tensorboard"
    assert stored.read_bytes() == trace.read_bytes()


def test_without_a_profiler_nothing_is_written(start: Start) -> None:
    """No folder, and no file of it in the checkpoint."""
    agent, context = start(config=CONFIG, length=2)
    rt.Trainer(PlainTrial(context), context).fit()
    finish(agent, context)
    assert not Path(FOLDER).exists()
    assert not list(Path(agent.path).parent.rglob("tensorboard"))


def test_what_a_trial_wrote_comes_back_with_its_checkpoint(start: Start) -> None:
    """Another run, on another machine, has the files that the one before wrote."""

    class Writing(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            folder = self.context.get_tensorboard_path() / "words"
            folder.mkdir(exist_ok=True)
            (folder / f"{batch_idx}.txt").write_text(f"batch {batch_idx}")
            return super().train_batch(batch, epoch_idx, batch_idx)

        def build_callbacks(self) -> dict[str, rt.Callback]:
            return {"looking": Looking()} if self.context.core.info.trial.run == 1 else {}

    class Looking(rt.Callback):
        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            assert (Path(checkpoint_dir) / "tensorboard" / "words" / "1.txt").is_file()

    agent, context = start(config=CONFIG, length=2)
    rt.Trainer(Writing(context), context).fit()
    finish(agent, context)
    words = Path(FOLDER) / "words"
    for path in words.iterdir():
        path.unlink()
    [stored] = [message.checkpoint_id for message in agent.of(Stored)]
    agent.spec = msgspec.structs.replace(agent.spec, run=2, length=3, restore=[stored])
    with rt.init() as again:
        rt.Trainer(Writing(again), again).fit()
    assert sorted(path.read_text() for path in words.iterdir()) == [
        "batch 0",
        "batch 1",
        "batch 2",
    ]
    found = {path.name for path in (Path(agent.path).parent / "objects").rglob("words/*")}
    assert found == {"0.txt", "1.txt", "2.txt"}


@pytest.mark.e2e
def test_the_writer_writes_where_tensorboard_reads(start: Start) -> None:
    """Torch's own writer; it is flushed with a checkpoint and closed with the context."""
    pytest.importorskip("tensorboard", reason="not installed: tensorboard")
    agent, context = start(config=CONFIG, length=1)

    class Writing(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            writer = self.context.get_tensorboard_writer()
            assert writer is self.context.get_tensorboard_writer()
            writer.add_scalar("own", 1.5, batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

    rt.Trainer(Writing(context), context).fit()
    finish(agent, context)
    [stored] = (Path(agent.path).parent / "objects").rglob("events.out.tfevents.*")
    assert b"own" in stored.read_bytes()
