"""Large and small objects in and out of the stores, beside what the tools below them do alone.

S3: a real server (SeaweedFS) as a process of this machine; the peer is the plain minio client,
with its own parallel parts of the same size (it sends no MD5, which is what SeaweedFS checks).
Folder: the peer is `cp` followed by an fsync. Each pair is measured in turn, in the same run, and
the median of its ratios counts.

    python -m benchmarks.stores.objects [--mib N] [--rounds N] [--files N]
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.figures import figure
from minio import Minio

from rung.storage import FolderStore, ObjectStore, Provenance, load_checkpoint, store_checkpoint
from rung.storage.s3.settings import MIB, from_environment
from rung.storage.s3.store import S3Store
from servers.s3 import ACCESS_KEY, REGION, SECRET_KEY
from servers.seaweed import Seaweed

PARALLEL = 4
MINIO = "the plain minio client"
COPY = "`cp` and fsync"


def seconds(work: Callable[[], object]) -> float:
    """Return how long the work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def compare(  # noqa: PLR0913, PLR0917 - two pieces of work, and what they are called
    title: str,
    size: int,
    rounds: int,
    ours: Callable[[], object],
    name: str,
    peer: Callable[[], object],
) -> None:
    """Measure both in turn, after one round that does not count, and print the medians."""
    times = [(seconds(ours), seconds(peer)) for _ in range(rounds + 1)][1:]
    rate, peers = (size / MIB / statistics.median(it) for it in zip(*times, strict=True))
    ratio = statistics.median(theirs / own for own, theirs in times)
    figure(f"objects in {title}", rate, "MiB/s", beside=f"{ratio:.2f} of {name}, {peers:.0f}")


def checkpoints(store: ObjectStore, folder: Path, files: int, rounds: int, title: str) -> None:
    """Measure a checkpoint of many small files, there and back."""
    source = folder / "many"
    source.mkdir(exist_ok=True)
    for number in range(files):
        (source / f"part-{number}").write_bytes(os.urandom(20_000))
    about = Provenance(experiment_id="bench", trial_id="bench.0", run=1)
    there, back = [], []
    for number in range(rounds):
        name = f"bench.0.1.{number}"

        def put(name: str = name) -> None:
            store_checkpoint(
                store, source, checkpoint_id=name, steps_completed=1, metadata={}, provenance=about
            )

        there.append(seconds(put))
        back.append(seconds(partial(load_checkpoint, store, "bench", name, folder / name)))
    put_s, load_s = statistics.median(there), statistics.median(back)
    print(f"{title:32} store {put_s * 1000:6.0f} ms        load {load_s * 1000:6.0f} ms")


def in_s3(server: Seaweed, folder: Path, source: Path, options: argparse.Namespace) -> None:
    """Measure the store in S3."""
    client = Minio(
        urlsplit(server.endpoint).netloc, ACCESS_KEY, SECRET_KEY, secure=False, region=REGION
    )
    more = {"RUNG_S3_PARALLEL": str(PARALLEL)}
    store = S3Store(f"{server.url}/ours", from_environment(server.environment | more))
    part = store.bucket.settings.part_bytes
    size = source.stat().st_size

    def put() -> None:
        store.delete("large")
        store.put("large", source)

    def peer_put() -> None:
        client.remove_object("rung", "peer")
        client.fput_object(
            "rung", "peer", str(source), part_size=part, num_parallel_uploads=PARALLEL
        )

    compare(f"s3: put {size // MIB} MiB", size, options.rounds, put, MINIO, peer_put)
    compare(
        f"s3: get {size // MIB} MiB",
        size,
        options.rounds,
        lambda: store.get("large", folder / "back"),
        MINIO,
        lambda: client.fget_object("rung", "peer", str(folder / "peer")),
    )
    checkpoints(store, folder, options.files, 3, f"s3: checkpoint, {options.files} files")
    with ThreadPoolExecutor(PARALLEL) as threads:
        count = 400
        took = seconds(
            lambda: list(
                threads.map(lambda n: store.put_bytes(f"small/{n}", b"x" * 1000), range(count))
            )
        )
    print(f"{'s3: put 1 kB, 4 threads':32} {count / took:8.0f} objects/s")


def in_folder(folder: Path, source: Path, options: argparse.Namespace) -> None:
    """Measure the store in a folder."""
    store = FolderStore(folder / "objects")
    size = source.stat().st_size

    def synced_copy(target: Path) -> None:
        subprocess.run(["cp", str(source), str(target)], check=True)
        with target.open("rb") as opened:
            os.fsync(opened.fileno())

    compare(
        f"folder: put {size // MIB} MiB",
        size,
        options.rounds,
        lambda: store.put("large", source),
        COPY,
        lambda: synced_copy(folder / "copy"),
    )
    compare(
        f"folder: get {size // MIB} MiB",
        size,
        options.rounds,
        lambda: store.get("large", folder / "back"),
        "`cp`",
        lambda: subprocess.run(["cp", str(source), str(folder / "copy")], check=True),
    )
    checkpoints(store, folder, options.files, 3, f"folder: checkpoint, {options.files} files")


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"
        source.write_bytes(os.urandom(options.mib * MIB))
        in_folder(folder, source, options)
        with Seaweed(folder / "server") as server:
            in_s3(server, folder, source, options)


if __name__ == "__main__":
    main()
