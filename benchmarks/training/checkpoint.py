"""What a checkpoint costs: the training step, the time until it is durable, the way back.

    stall       how long training waits for a checkpoint, beside a plain copy of its bytes
    durable     from the call until the checkpoint is announced, digests included, beside
                `torch.save` to a file and fsync, and beside what the disk takes at most
    again       the same when most of the model is frozen
    restore     out of the page cache: files compared with their digests and mapped, beside
                reading the bytes from memory; after the page cache was dropped, beside reading
                them from the disk; and both when model and optimizer have taken all in

Each pair is measured in turn, in the same run, and the median of its ratios counts: for rates ours
to theirs, so that more is better. What an aim is set for says so.

    python -m benchmarks.training.checkpoint [--mb N] [--rounds N] [--threads N]
"""

import argparse
import contextlib
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog
import torch
from benchmarks.figures import figure

from rung import torch as rt
from rung.core.ipc.protocol import Stored
from rung.storage import open_checkpoint, open_store
from rung.torch.checkpoint import state
from rung.torch.checkpoint.files import read
from rung.torch.checkpoint.saver import Saver
from rung.training.averages import TrainingAverages
from rung.training.plan import Progress
from support.agent_end import AgentEnd, agent_end

LAYERS = 16
EXPERIMENT = "exp00000"


def seconds(work: Callable[[], object]) -> float:
    """Return how long the work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def show(  # noqa: PLR0913, PLR0917 - the columns of a line
    title: str, size: int, ours: list[float], peers: list[float], peer: str, aim: float = 0
) -> None:
    """Print the medians of what was measured in turn, and the aim if there is one."""
    ratio = statistics.median(theirs / own for own, theirs in zip(ours, peers, strict=True))
    rate, peer_rate = (size / 1e6 / statistics.median(it) for it in (ours, peers))
    aimed = f", wanted: at least {aim:.2f}" if aim else ""
    beside = f"{ratio:.2f} of {peer}{aimed}; that is {peer_rate:,.0f} MB/s"
    figure(f"checkpoint of {size / 1e6:,.0f} MB: {title}", rate, "MB/s", beside=beside)


class Model(torch.nn.Module):
    """So many bytes of weights; with SGD's momentum they are a third more than twice that."""

    def __init__(self, size: int) -> None:
        super().__init__()
        each = size // 4 // LAYERS
        self.layers = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(each)) for _ in range(LAYERS)
        )


class Bench:
    """A run with a state of a given size."""

    def __init__(self, agent: AgentEnd, context: rt.TrialContext, size: int) -> None:
        self.agent = agent
        self.context = context
        self.model = context.wrap_model(Model(size // 2))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), 1e-6, momentum=0.9)
        )
        self._trial = object()
        self.saver = Saver(context.core.checkpoint, [], context.distributed)
        self.steps = 0
        self.change()

    def change(self) -> None:
        """Take a step in which every weight that is trained changes."""
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def parts(self) -> state.Parts:
        """Return all that has a state."""
        return state.Parts(
            trial=self._trial,  # type: ignore[arg-type]  # it has no state of its own
            context=self.context,
            callbacks={},
            averages=TrainingAverages(),
            progress=Progress(),
        )

    def capture(self) -> state.Captured:
        """Return the state of the moment."""
        return state.capture(self.parts(), None)

    def save(self) -> tuple[float, float]:
        """Store a checkpoint; return how long training waited, and until it was announced."""
        self.change()
        self.steps += 1
        begun = time.perf_counter()
        self.saver.save(self.capture, {}, self.steps)
        stall = time.perf_counter() - begun
        self.saver.finish()
        return stall, time.perf_counter() - begun

    def tensors(self) -> list[torch.Tensor]:
        """Return all that a checkpoint holds."""
        captured = self.capture()
        momenta = captured.training["optimizers"][0]["state"].values()
        return [*captured.models[0].values(), *(it["momentum_buffer"] for it in momenta)]

    def newest(self) -> str:
        """Return the checkpoint that was announced last."""
        self.agent.wait_for(lambda agent: len(agent.of(Stored)) == self.steps)
        return self.agent.of(Stored)[-1].checkpoint_id

    def delete_all_but(self, kept: str) -> None:
        """Make room."""
        store = open_store(self.agent.objects_url)
        for stored in self.agent.of(Stored):
            if stored.checkpoint_id != kept:
                store.delete(f"checkpoints/{EXPERIMENT}/{stored.checkpoint_id}/")


def drop(paths: list[Path]) -> None:
    """Have the page cache forget some files."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_past_the_cache(paths: list[Path]) -> None:
    """Read files as fast as the disk gives them."""
    aligned = mmap.mmap(-1, 16 << 20)
    for path in paths:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        offset = 0
        while count := os.preadv(file, [aligned], offset):
            offset += count
            if count % 4096:
                break
        os.close(file)


def write_past_the_cache(path: Path, size: int) -> None:
    """Write a file as fast as the disk takes it, several pieces at a time."""
    piece = mmap.mmap(-1, 8 << 20)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    with ThreadPoolExecutor(3) as writers:
        list(writers.map(lambda at: os.pwrite(file, piece, at), range(0, size, len(piece))))
    os.fsync(file)
    os.close(file)


def measure_saving(bench: Bench, folder: Path, rounds: int) -> None:
    """Measure stall and durability."""
    stalls, copies, durable, peers, disk = [], [], [], [], []
    tensors = bench.tensors()
    size = sum(tensor.nbytes for tensor in tensors)
    copied = [torch.empty_like(tensor).zero_() for tensor in tensors]
    target = folder / "peer.pt"

    def copy() -> None:
        for tensor, other in zip(tensors, copied, strict=True):
            other.copy_(tensor)

    def plain() -> None:
        with target.open("wb") as file:
            torch.save([{"model": tensors}], file)
            file.flush()
            os.fsync(file.fileno())

    for number in range(rounds + 1):
        stall, until = bench.save()
        copying, saving = seconds(copy), seconds(plain)
        target.unlink()
        writing = seconds(lambda: write_past_the_cache(target, size))
        target.unlink()
        bench.delete_all_but(bench.newest())
        if number:
            stalls.append(stall)
            copies.append(copying)
            durable.append(until)
            peers.append(saving)
            disk.append(writing)
    show("stall of the training step", size, stalls, copies, "copy in memory", 1 / 1.3)
    more = statistics.median(own / theirs for own, theirs in zip(stalls, copies, strict=True))
    print(f"the step stalls {more:.2f} times as long as the copy takes, wanted: at most 1.30")
    show("durable checkpoint", size, durable, peers, "torch.save + fsync", 3)
    show("durable checkpoint", size, durable, disk, "disk, past the cache")


def measure_frozen(bench: Bench, rounds: int) -> None:
    """Measure checkpoints of which nine tenths of the model do not change."""
    for parameter in list(bench.model.parameters())[: LAYERS * 9 // 10]:
        parameter.requires_grad = False
        bench.optimizer.state.pop(parameter, None)
    size = sum(tensor.nbytes for tensor in bench.capture().models[0].values())
    first = [bench.save()[1]]
    more = [bench.save()[1] for _ in range(rounds)]
    title = "again, 9/10 of the model frozen"
    show(title, size, more, first * rounds, "the first of them")


def measure_restoring(bench: Bench, folder: Path, rounds: int) -> None:
    """Measure the way back, from memory and from the disk."""
    store, newest = open_store(bench.agent.objects_url), bench.newest()
    found = open_checkpoint(store, EXPERIMENT, newest, folder)
    paths = list(found.paths.values())
    size = found.stored.manifest.size_bytes

    def mapped() -> state.Captured:
        opened = open_checkpoint(store, EXPERIMENT, newest, folder)
        return read(opened.paths, 1)

    def whole() -> None:
        state.apply(bench.parts(), mapped())

    def from_memory() -> None:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                data = bytearray(path.stat().st_size)
                file.readinto(data)

    from_memory()
    rows: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, work in (("mapped", mapped), ("whole", whole), ("memory", from_memory)):
            rows.setdefault(name, []).append(seconds(work))
    from_disk = partial(read_past_the_cache, paths)
    for _ in range(rounds):
        for name, work in (("cold", mapped), ("cold whole", whole), ("disk", from_disk)):
            drop(paths)
            rows.setdefault(name, []).append(seconds(work))
    memory, disk = (rows["memory"], "read from memory"), (rows["disk"], "read from disk")
    show("restore, checked and mapped", size, rows["mapped"], *memory, 0.9)
    show("restore, all taken in", size, rows["whole"], *memory)
    show("restore from disk, checked, mapped", size, rows["cold"], *disk, 0.9)
    show("restore from disk, all taken in", size, rows["cold whole"], *disk)


@contextlib.contextmanager
def run(folder: Path, size: int) -> Iterator[Bench]:
    """Yield a run with a state."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with agent_end(folder, config={"searcher": {"metric": "loss"}}) as agent:
        os.environ.update(agent.environment)
        os.chdir(folder)
        with rt.init() as context:
            yield Bench(agent, context, size)


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as name,
        run(Path(name), options.mb * 10**6) as bench,
    ):
        measure_saving(bench, Path(name), options.rounds)
        measure_restoring(bench, Path(name), options.rounds)
        measure_frozen(bench, options.rounds)


if __name__ == "__main__":
    main()
