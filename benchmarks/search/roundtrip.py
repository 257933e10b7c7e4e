"""How long it takes from a trial's report to the search's answer back at the trial.

The trial reports past its length; the searcher withdraws its run, the scheduler signals that to
the agent, and the agent tells the trial. On a cluster these are four passages through Kafka, each
acknowledged by all replicas, between five processes. The limit it is measured against is what
four passages of one record through the same broker take, one after another, in the same run. The
peer is one machine: the same on SQLite. How that grows: on 1 partition as on 8, and there with 10
and with 10,000 trials of another search open, whose runs wait in the same partition and the same
pool's queue, because they want more slots than there are.

    python -m benchmarks.search.roundtrip [--trials 80]
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import figure

CODE = Path(__file__).parents[1] / "submitted" / "roundtrip"

PASSAGES = 4
TOPIC = "rung.deadletter"
"""Which the cluster has, and which is idle."""
AIM_MS = 100.0
OPEN = (10, 10_000)


def experiment(trials: int) -> dict[str, Any]:
    """Return the experiment file."""
    return {
        "name": "roundtrip",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"limit": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {
            "name": "async_halving",
            "metric": "loss",
            "time_metric": "batches",
            "max_time": 100,
            "num_rungs": 3,
            "divisor": 10,
            "max_trials": trials,
            "max_concurrent_trials": 1,
        },
    }


def waiting(trials: int) -> dict[str, Any]:
    """Return one of whose trials all are open, and none can run."""
    return experiment(trials) | {
        "name": "waiting",
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_length": {"batches": 1},
            "max_trials": trials,
            "max_concurrent_trials": trials,
        },
        "resources": {"slots_per_trial": 2},
    }


def submitted(rung: Callable[..., str], file: dict[str, Any]) -> str:
    """Submit an experiment; return its id."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.yaml"
        path.write_text(json.dumps(file))  # which is YAML too
        return str(json.loads(rung("submit", str(path), str(CODE), "--json"))["experiment_id"])


def roundtrips(rung: Callable[..., str], get: Callable[[str], Any], trials: int) -> list[float]:
    """Run the search and return what its trials measured, in milliseconds."""
    name = submitted(rung, experiment(trials))
    rung("wait", name)
    path = f"/experiments/{name}/metrics?kind=training&name=roundtrip_ms"
    return sorted(point[1] for curve in get(path)["curves"].values() for point in curve)


def opened(rung: Callable[..., str], get: Callable[[str], Any], trials: int) -> None:
    """Have as many trials more wait, and return once all do."""
    name = submitted(rung, waiting(trials))
    while len(get(f"/experiments/{name}")["trials"]) < trials:
        time.sleep(0.5)


def one_machine(trials: int) -> list[float]:
    """Measure on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RUNG_DATA": folder}
        rung = commands(environment)
        up = json.loads(rung("up", "--detach", "--port", "0", "--slots", "1", "--json"))
        try:
            token = (Path(folder) / "token").read_text().strip()
            return roundtrips(rung, answers(up["url"], token), trials)
        finally:
            rung("down")


@contextlib.contextmanager
def cluster(partitions: int) -> Iterator[tuple[Callable[..., str], Callable[[str], Any], str]]:
    """Give the commands, the answers and the broker of a cluster with one slot."""
    from servers.cluster import LocalCluster

    with tempfile.TemporaryDirectory() as folder:
        everything = LocalCluster(Path(folder), agents=1, slots=1, partitions=partitions)
        try:
            everything.start()
            rung = commands({**os.environ, **everything.environment})
            yield rung, answers(everything.urls[0], everything.token), everything.broker.url
        finally:
            everything.kill()


def growth(trials: int) -> None:
    """Print how it is on one partition, and there with more and more trials open."""
    with cluster(partitions=1) as (rung, get, _):
        say("1 partition", roundtrips(rung, get, trials))
        there = 0
        for many in OPEN:
            opened(rung, get, many - there)
            there = many
            say(f"1 partition, {many:,} open", roundtrips(rung, get, trials))


async def passages(url: str, count: int) -> list[float]:
    """Return the milliseconds of four produced and consumed records, one after another."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    server = url.removeprefix("kafka://")
    producer = AIOKafkaProducer(bootstrap_servers=server, acks="all")
    consumer = AIOKafkaConsumer(bootstrap_servers=server, fetch_max_wait_ms=1000)
    await producer.start()
    await consumer.start()
    consumer.assign([TopicPartition(TOPIC, 0)])
    await consumer.seek_to_end()
    found = []
    for _ in range(count):
        began = time.perf_counter()
        for _ in range(PASSAGES):
            await producer.send_and_wait(TOPIC, bytes(500), partition=0)
            await consumer.getone()
        found.append(1000 * (time.perf_counter() - began))
    await producer.stop()
    await consumer.stop()
    return sorted(found)


def commands(environment: dict[str, str]) -> Callable[..., str]:
    """Return what runs a command of `rung`."""

    def rung(*arguments: str) -> str:
        command = [sys.executable, "-m", "rung.cli", *arguments]
        output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        return output.stdout.decode()

    return rung


def answers(url: str, token: str) -> Callable[[str], Any]:
    """Return what asks a gateway."""
    import urllib.request

    def get(path: str) -> Any:
        request = urllib.request.Request(  # noqa: S310 - a loopback address of our own
            f"{url}/api/v1{path}", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            return json.load(answer)

    return get


def say(name: str, taken: list[float], more: str = "") -> None:
    """Print the median and the 99th percentile."""
    p99 = taken[int(0.99 * (len(taken) - 1))]
    beside = f"p99 {p99:.1f} ms of {len(taken)}{more}"
    figure(f"from a report to the answer, {name}", statistics.median(taken), "ms", beside=beside)


def main() -> None:
    """Print all, and the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=80)
    options = parser.parse_args()
    say("one machine, SQLite", one_machine(options.trials))
    with cluster(partitions=8) as (rung, get, broker):
        taken = roundtrips(rung, get, options.trials)
        bare = asyncio.run(passages(broker, options.trials))
    ratio = statistics.median(taken) / statistics.median(bare)
    say("four passages alone", bare)
    more = f", wanted: {AIM_MS:g}; {ratio:.1f} times four passages through the broker alone"
    say("cluster, 8 partitions", taken, more)
    growth(options.trials // 4)


if __name__ == "__main__":
    main()
