"""The data cache: what the first trial of a node pays, and what later trials and epochs do not.

A real S3 server (SeaweedFS) as a process of this machine holds a data set of many files. The peer
of every reading is reading the same files from an ordinary folder of the same disk, in turn and in
the same run; once from memory, once after the pages were dropped. The peer of the first filling
is the plain minio client with as many threads, which verifies nothing. The medians count.

The loader: a torch DataLoader with one worker over the files, and a step that takes four times as
long as reading a batch from an ordinary folder; `data_wait_fraction` is the trainer's own metric.

    python -m benchmarks.training.data [--mib N] [--files N] [--rounds N]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import torch
from benchmarks.figures import figure
from minio import Minio
from torch.utils.data import DataLoader, Dataset

from rung.cache import Cache, Held, Origin, Source, origin_of
from rung.core._data import DataSource
from rung.storage.s3.settings import from_environment
from rung.storage.s3.store import S3Store
from rung.training.data_wait import NAME, DataWait
from servers.s3 import ACCESS_KEY, REGION, SECRET_KEY
from servers.seaweed import Seaweed

MIB = 1 << 20
AT_ONCE = 8
BATCH = 4
FOLDER = "an ordinary folder"


def seconds(work: Callable[[], object]) -> float:
    """Return how long the work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def files_below(folder: Path) -> list[Path]:
    """Return the files of a folder, sorted by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def read(folder: Path) -> None:
    """Read every file, as an epoch does."""
    for path in files_below(folder):
        path.read_bytes()


def drop(folder: Path) -> None:
    """Have the next reading come from the disk."""
    for path in files_below(folder):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def show(title: str, size: int, ours: list[float], name: str, peers: list[float]) -> None:
    """Print the medians of a pair, and of its ratios."""
    own, peer = statistics.median(ours), statistics.median(peers)
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, peers, strict=True))
    beside = f"{ratio:.2f} of {name}, {size / MIB / peer:.0f} MiB/s"
    figure(f"data cache: {title}", size / MIB / own, "MiB/s", beside=beside)


def epochs(title: str, cached: Path, local: Path, size: int, rounds: int) -> None:
    """Compare an epoch over the cache with one over an ordinary folder."""
    for kind, before in (("from memory", lambda _: None), ("from the disk", drop)):
        times: dict[Path, list[float]] = {cached: [], local: []}
        for turn in range(6 * rounds + 2):
            for folder in (cached, local) if turn % 2 else (local, cached):
                before(folder)
                times[folder].append(seconds(partial(read, folder)))
        show(f"{title}, {kind}", size, times[cached][2:], FOLDER, times[local][2:])


def filled(cache: Cache, origin: Origin) -> Held:
    """Do what an agent does for a run: list, reserve, bring what is missing."""
    held = cache.reserve([origin.list()])
    cache.fill(held, 0, origin).run()
    return held


def first_and_second(
    server: Seaweed, url: str, folder: Path, size: int, rounds: int
) -> tuple[Path, Origin]:
    """Measure filling against the plain client, and a second trial against the first."""
    client = Minio(
        urlsplit(server.endpoint).netloc, ACCESS_KEY, SECRET_KEY, secure=False, region=REGION
    )
    origin = origin_of(Source("train", f"{url}/train"), server.environment)
    prefix = urlsplit(url).path.strip("/")
    names = [entry.name for entry in origin.list().entries]

    def fetch(number: int, name: str) -> None:
        client.fget_object("rung", f"{prefix}/train/{name}", str(folder / f"peer{number}" / name))

    def fetch_all(threads: ThreadPoolExecutor, number: int) -> None:
        list(threads.map(fetch, [number] * len(names), names))

    first, peers, second = [], [], []
    for number in range(rounds):
        cache = Cache(folder / f"cache{number}", 100 << 30)
        first.append(seconds(partial(filled, cache, origin)))
        second.append(seconds(partial(filled, cache, origin)))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            peers.append(seconds(partial(fetch_all, threads, number)))
    show("first trial, filled and verified", size, first, "the plain minio client", peers)
    faster = statistics.median(one / two for one, two in zip(first, second, strict=True))
    print(
        f"{'second trial: until its data are there':42} {statistics.median(second) * 1000:7.0f} ms"
        f"      {faster:.0f} times as fast as the first"
    )
    return filled(cache, origin).roots[0], origin


class Files(Dataset[torch.Tensor]):
    """A file a sample."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self._files[index].read_bytes()), dtype=torch.uint8)


class Training:
    """A loop over files, with a loader process beside it that lives from epoch to epoch."""

    def __init__(self, files: list[Path], step_s: float) -> None:
        self._count = len(files) // BATCH
        self._step_s = step_s
        self._loader = DataLoader(
            Files(files),
            batch_size=BATCH,
            num_workers=1,
            prefetch_factor=8,
            persistent_workers=True,
        )

    def epoch(self) -> tuple[float, float]:
        """Train; return the seconds, and which fraction of them it waited for data."""
        batches = iter(self._loader)
        next(batches)  # the loader begins each epoch with an empty queue
        wait = DataWait(period_s=0.0)
        begun = time.perf_counter()
        for _ in range(self._count - 1):
            wait.batch(lambda: next(batches))
            time.sleep(self._step_s)  # the step is the device's: it leaves the cores alone
            wait.trained()
        return time.perf_counter() - begun, wait.take()[NAME]


def loader(cached: Path, local: Path, rounds: int) -> None:
    """Compare training from the cache with training from an ordinary folder."""
    files = files_below(local)
    alone_s = seconds(lambda: read(local)) * BATCH / len(files)
    step_s = max(0.02, 4 * alone_s)
    ours, peers = Training(files_below(cached), step_s), Training(files, step_s)
    found = [(ours.epoch(), peers.epoch()) for _ in range(rounds + 1)][1:]
    ratio = statistics.median(peer[0] / own[0] for own, peer in found)
    waited = [statistics.median(each[which][1] for each in found) for which in (0, 1)]
    print(
        f"{'training, beside a loader process':42} against an ordinary folder, ratio {ratio:5.2f}"
    )
    beside = f"{100 * waited[1]:.1f} % {FOLDER}"
    figure("data cache: training waits for data", 100 * waited[0], "%", beside=beside)


def streamed(origin: Origin, folder: Path) -> None:
    """Show when a trial with `stream: true` has its first file, beside when it has all."""
    cache = Cache(folder / "streamed", 100 << 30)
    begun = time.perf_counter()
    held = cache.reserve([origin.list()])
    source = DataSource("train", held.roots[0], held.trees[0].folder)
    with ThreadPoolExecutor(1) as threads:
        filling = threads.submit(cache.fill(held, 0, origin).run)
        next(source.files())
        first = time.perf_counter() - begun
        filling.result()
    whole = time.perf_counter() - begun
    print(f"{'stream: first file, after a part of the time':42} {first / whole:7.3f}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place, Seaweed(Path(place) / "server") as server:
        folder = Path(place)
        store = S3Store(f"{server.url}/data", from_environment(server.environment))
        local = folder / "local"
        local.mkdir()
        each = options.mib * MIB // options.files
        for number in range(options.files):
            path = local / f"{number:05}.bin"
            path.write_bytes(os.urandom(each))
            store.put(f"train/{path.name}", path)
        size = each * options.files
        cached, origin = first_and_second(server, store.url, folder, size, options.rounds)
        epochs("second epoch", cached, local, size, options.rounds)
        streamed(origin, folder)
        loader(cached, local, options.rounds)


if __name__ == "__main__":
    main()
