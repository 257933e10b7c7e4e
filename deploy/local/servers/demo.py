"""`make cluster`: brings the whole cluster up, runs the demo's search on it, takes it down.

Apache Kafka, ClickHouse and SeaweedFS as real processes, every service apart, two agents; each
agent in a network namespace where this machine allows that. With `--keep` it stays up until
Ctrl-C, for a person to look at.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rung.cli.local.demo import search
from servers.cluster import LocalCluster
from servers.kafka import KafkaCluster
from servers.network import Network, available
from servers.process import ServerFailed


def main() -> None:
    """Run the demo; exits with the code of the search or of its audit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, help="of Kafka (default: 1)")
    parser.add_argument("--agents", type=int, default=2, help="default: 2")
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="rung-cluster-"))
    network = Network() if available() else None
    try:
        code = _run(folder, network, options)
    except ServerFailed as failure:
        sys.exit(f"Error: {failure}\nThe logs are in {folder}.")
    except KeyboardInterrupt:
        code = 130
    finally:
        if network is not None:
            network.close()
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


def _run(folder: Path, network: Network | None, options: argparse.Namespace) -> int:
    cores = os.cpu_count() or 2
    host = network.host if network else "127.0.0.1"
    cluster = LocalCluster(
        folder,
        broker=KafkaCluster(folder / "kafka", brokers=options.brokers, host=host),
        agents=options.agents,
        slots=max(1, cores // options.agents),
        network=network,
    )
    began = time.monotonic()
    try:
        cluster.start()
        where = "in network namespaces of their own" if network else "on the loopback interface"
        _say(
            f"Up in {time.monotonic() - began:.0f} s: Apache Kafka ({options.brokers} broker), "
            f"ClickHouse, SeaweedFS, {len(cluster.services)} services, {options.agents} agents "
            f"{where}. Logs: {folder}/log",
            f"The page: {cluster.urls[0]}/#token={cluster.token}",
        )
        os.environ.update(cluster.environment)
        code = search()
        _say(cluster.rung("cluster", "status"))
        if options.keep:
            _say("It stays up; Ctrl-C takes it down.")
            signal.pause()
        return code
    finally:
        cluster.stop()
        _say("Everything is down.")


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201 - this is a command
