"""How long it takes from a trial's report to the search's answer back at the trial.

The trial reports past its length; the searcher withdraws its run, the scheduler signals that to
the agent, and the agent tells the trial. On a cluster these are four passages through Kafka, each
acknowledged by all replicas, between five processes. The limit it is measured against is what
four passages of one record through the same broker take, one after another, in the same run. The
peer is one machine: the same on SQLite.

    python benchmarks/roundtrip.py [--trials 200]
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CODE = Path(__file__).parent / "submitted" / "roundtrip"
sys.path.insert(0, str(Path(__file__).parents[1] / "deploy" / "local"))

PASSAGES = 4
TOPIC = "rung.deadletter"
"""Which the cluster has, and which is idle."""
AIM_MS = 100.0


def experiment(trials: int) -> str:
    """Return the experiment file, in JSON, which is YAML too."""
    return json.dumps(
        {
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
    )


def roundtrips(rung: Callable[..., str], get: Callable[[str], Any], trials: int) -> list[float]:
    """Run the search and return what its trials measured, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "roundtrip.yaml"
        file.write_text(experiment(trials))
        name = json.loads(rung("submit", str(file), str(CODE), "--json"))
    rung("wait", name["experiment_id"])
    path = f"/experiments/{name['experiment_id']}/metrics?kind=training&name=roundtrip_ms"
    return sorted(point[1] for curve in get(path)["curves"].values() for point in curve)


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


def cluster(trials: int) -> tuple[list[float], list[float]]:
    """Measure on a cluster; return also what as many passages take by themselves."""
    from servers.cluster import LocalCluster

    with tempfile.TemporaryDirectory() as folder:
        everything = LocalCluster(Path(folder), agents=1, slots=1)
        try:
            everything.start()
            rung = commands({**os.environ, **everything.environment})
            get = answers(everything.urls[0], everything.token)
            taken = roundtrips(rung, get, trials)
            return taken, asyncio.run(passages(everything.broker.url, trials))
        finally:
            everything.kill()


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
    p50, p99 = statistics.median(taken), taken[int(0.99 * (len(taken) - 1))]
    print(f"{name:24} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   n {len(taken)}   {more}", flush=True)


def main() -> None:
    """Print both, and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    options = parser.parse_args()
    alone = one_machine(options.trials)
    taken, bare = cluster(options.trials)
    ratio = statistics.median(taken) / statistics.median(bare)
    p99 = taken[int(0.99 * (len(taken) - 1))]
    say("one machine, SQLite", alone)
    say("four passages alone", bare)
    say("cluster, Apache Kafka", taken, f"{ratio:.1f} times the passages alone")
    print(f"p99 is {p99 / AIM_MS:.2f} of the aim of {AIM_MS:.0f} ms")


if __name__ == "__main__":
    main()
