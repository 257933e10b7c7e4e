"""One code path: a search gives the same on one machine and on a cluster.

For methods whose result does not depend on the order in which reports arrive. The trials are those
of the example that `make demo` tunes, trained for a few epochs.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from cluster.conftest import user_of
from rung.events import Payload, decode, topic
from rung.events.trial import RunRequested
from rung.ledger import Ledger
from rung.ledger.factory import open_ledger
from rung.storage import ObjectStore, open_store
from servers.cluster import LocalCluster
from support.installation import Installation
from support.user import User

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
METHODS: dict[str, dict[str, Any]] = {
    "grid": {"name": "grid", "max_length": {"epochs": 2}, "max_concurrent_trials": 2},
    "random": {"name": "random", "max_length": {"epochs": 2}, "max_trials": 4},
    "hyperband": {"name": "hyperband", "max_time": 3, "divisor": 3, "time_metric": "epochs"},
}


def _experiment(name: str) -> dict[str, Any]:
    """Return the example's file with another method, small enough for a test."""
    config: dict[str, Any] = yaml.safe_load((EXAMPLE / "digits.yaml").read_text())
    searcher = {"metric": "error", "smaller_is_better": True, **METHODS[name]}
    changes: dict[str, Any] = {"name": f"digits-{name}", "searcher": searcher}
    if name == "grid":
        changes["hyperparameters"] = {
            "global_batch_size": {"type": "categorical", "vals": [32, 64]},
            "label_smoothing": 0.1,
            "model": {"channels": 8, "kernel": 3, "dropout": 0.2},
            "optimizer": {
                "name": {"type": "categorical", "vals": ["sgd", "adamw"]},
                "lr": 0.01,
                "weight_decay": 0.0001,
            },
        }
    return config | changes


async def _decided(ledger: Ledger, experiment: str) -> list[str]:
    """Return the searcher's decisions about an experiment, in an order that all ledgers share."""
    partition = topic.partition_of(experiment, ledger.partitions(topic.SEARCHES))
    position, events = 0, []
    while records := await ledger.read(topic.SEARCHES, partition, position, 1_000):
        position = records[-1].position + 1
        events += [_timeless(decode(it.value).data) for it in records if it.key == experiment]
    texts = (f"{e.TYPE} {msgspec.json.encode(e, order='sorted').decode()}" for e in events)
    return sorted(text.replace(experiment, "EXPERIMENT") for text in texts)


def _timeless(data: Payload) -> Payload:
    """Return a decision without the time at which its experiment was submitted."""
    if not isinstance(data, RunRequested) or data.submission is None:
        return data
    return structs.replace(data, submission=structs.replace(data.submission, time_ms=0))


def _decisions(url: str, objects: ObjectStore | None, experiment: str) -> list[str]:
    async def read() -> list[str]:
        ledger = await open_ledger(url, objects)
        try:
            return await _decided(ledger, experiment)
        finally:
            await ledger.close()

    return asyncio.run(read())


def _audited(user: User, experiment: str) -> dict[str, Any]:
    """Return a search's result, after an audit that found no difference.

    Without the one file of a checkpoint that names the trial, and so the experiment.
    """
    result = user.result(experiment)
    result["content"] = [file for file in result["content"] if file[0] != "trainer.json"]
    audit = user.rung("audit", experiment, check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    return result


@pytest.fixture(scope="module")
def on_one_machine(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return of each method the result and the decisions on SQLite."""
    machine = Installation(tmp_path_factory.mktemp("one") / "data", cold=False)
    machine.up()
    try:
        ids = {name: machine.submit(_experiment(name), EXAMPLE) for name in METHODS}
        results = {name: _audited(machine, ids[name]) for name in METHODS}
    finally:
        machine.down()
    ledger = str(machine.folder / "ledger")
    return {name: (results[name], _decisions(ledger, None, ids[name])) for name in METHODS}


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_the_same_on_a_cluster(
    cluster: LocalCluster,
    on_one_machine: dict[str, tuple[dict[str, Any], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trials, metrics, best checkpoint and decisions are those of one machine; audits pass."""
    user = user_of(cluster)
    ids = {name: user.submit(_experiment(name), EXAMPLE) for name in METHODS}
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    objects = open_store(cluster.environment["RUNG_OBJECTS"])
    for name, experiment in ids.items():
        result, decisions = on_one_machine[name]
        assert _audited(user, experiment) == result
        assert _decisions(cluster.environment["RUNG_LEDGER"], objects, experiment) == decisions
