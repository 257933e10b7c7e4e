"""`rung cluster`: what is refused, what is said of a cluster that is away, and what is wrong."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from msgspec import structs

from cli.conftest import Rung
from rung.cli.operations.cluster import upgrade as cluster_upgrade
from rung.cli.operations.cluster.access import COMPONENTS
from rung.cli.operations.cluster.command import Retention
from rung.cli.operations.cluster.decider_status import Decider, PoolStatus
from rung.cli.operations.cluster.group import Replica
from rung.cli.operations.cluster.print import print_status
from rung.cli.operations.cluster.record_status import SealStatus, UnfinishedImport
from rung.cli.operations.cluster.relay_status import Consumer
from rung.cli.operations.cluster.status import (
    Broker,
    ClusterStatus,
    Letter,
    TopicStatus,
    _judge,
    look_at_letters,
)
from rung.cli.operations.cluster.upgrade import Upgrade, obstacles
from rung.events.deadletter import MessageDropped, MessageRejected, MessageRetryRequested
from rung.ledger import MemoryLedger, kafka
from rung.ledger.kafka import Created, Finding
from rung.runtime import FactWriter
from rung.runtime.assignment.settings import client_id_of, level_of_client

NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metrics=30d", ("metrics", timedelta(days=30))),
        ("heartbeats=12h", ("heartbeats", timedelta(hours=12))),
        ("logs=90m", ("logs", timedelta(minutes=90))),
        ("pools=ever", ("pools", None)),
    ],
)
def test_retention(text: str, expected: tuple[str, timedelta | None]) -> None:
    """A topic and its time, or for ever."""
    assert Retention().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["x=1d", "metrics", "metrics=", "metrics=0d", "metrics=1y", ""])
def test_retention_that_is_none(text: str) -> None:
    """The message names what is wrong, and what would be right."""
    with pytest.raises(click.BadParameter, match=r"there are experiments|give metrics=30d"):
        Retention().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["init"], 2, "Missing option '--ledger'"),
        (["init", "--ledger", "kafka://h", "--partitions", "0"], 2, "0 is not in the range"),
        (["init", "--ledger", "kafka://h", "--retention", "x=1d"], 2, "no topic 'x'"),
        (["init", "--ledger", "/folder"], 6, "kafka://host:9092"),
        (["init", "--ledger", "kafka://h", "--acls", "User:rung"], 2, "such as User:rung-{comp"),
        (["acls", "rung-{component}", "--ledger", "kafka://h"], 2, "such as User:rung-{comp"),
        (["status", "--ledger", "kafka://a@b"], 6, "RUNG_KAFKA_SASL_USERNAME"),
        (["init", "--ledger", "kafka://127.0.0.1:1"], 3, "Is it the right address"),
        (["status", "--ledger", "kafka://127.0.0.1:1"], 3, "Is it the right address"),
        (["upgrade", "--ledger", "/folder"], 6, "kafka://host:9092"),
        (["upgrade", "--ledger", "kafka://127.0.0.1:1"], 3, "Is it the right address"),
    ],
)
def test_refused(
    arguments: list[str], code: int, words: str, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit or does not answer is said in a line, with a code of its own."""
    monkeypatch.setenv("RUNG_KAFKA_TIMEOUT_S", "0.3")
    result = rung("cluster", *arguments)
    assert words in result.err
    assert result.code == code


@pytest.mark.parametrize(
    ("change", "words", "codes"),
    [
        (None, "all topics are as they should be", (0, 0)),
        ({"grave": True}, "wrong: t: s is f, should be e", (1, 1)),
        ({}, "differs: t: s is f, should be e", (0, 1)),
        ({"unknown": True}, "unknown: t: s is f, should be e", (0, 0)),
    ],
)
def test_what_init_finds(
    change: dict[str, bool] | None,
    words: str,
    codes: tuple[int, int],
    rung: Rung,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is well only where nothing was found; a dry run fails on what can be mended."""
    found = Finding(topic="t", setting="s", expected="e", found="f", grave=False)
    findings = [] if change is None else [structs.replace(found, **change)]

    async def create(*_: object, **__: object) -> Created:
        return Created(id="c0ffee", partitions=1, made=[])

    async def check(*_: object, **__: object) -> list[Finding]:
        return findings

    monkeypatch.setattr(kafka, "create", create)
    monkeypatch.setattr(kafka, "check", check)
    for arguments, code in zip(([], ["--dry-run"]), codes, strict=True):
        result = rung("cluster", "init", "--ledger", "kafka://h", *arguments)
        assert result.code == code
        assert words in result.out
        assert ("as they should be" in result.out) == (change is None)


def _status() -> ClusterStatus:
    """Return a cluster of which everything can be said, and nothing is wrong."""
    replica = Replica(host="10.0.0.7", partitions={"experiments": [0, 2], "placements": [0, 2]})
    return ClusterStatus(
        ledger="kafka://a:9092/rung",
        ledger_id="c0ffee",
        brokers=[Broker(id=1, address="a:9092", answers=True)],
        topics=[TopicStatus(name="pools", events=7, ends=[3, 4], leaderless=[], behind=[])],
        replicas={"searcher": [replica]},
        consumers=[
            Consumer(
                name="searcher-intake", topic="placements", lag=2, lags=[2, 0], positions=[5, 3]
            )
        ],
        deciders=[
            Decider(
                name="searcher", facts=4321, since_decision=5, since_snapshot=21, snapshot_s=61.0
            )
        ],
        pools=[PoolStatus(name="gpu", agents=2, slots=16, idle=4, waiting=3)],
        experiments={"active": 2, "paused": 1},
        dead_letters=1,
        seals=SealStatus(records=6006, unsealed=5, since="2026-01-01T01:59:58.000Z"),
        newest_letters=[
            Letter(time="2026-01-01T00:00:00Z", reader="searcher", topic="t", key="k", reason="r")
        ],
    )


def test_everything_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """All is well comes first, then what there is."""
    status = _status()
    _judge(status, NOW)
    print_status(status)
    text = capsys.readouterr().out
    assert text.startswith("All is well.\n")
    for words in (
        "kafka://a:9092/rung (c0ffee)",
        "2 active, 1 paused",
        "searcher  10.0.0.7  experiments 0,2; placements 0,2",
        "4,321",
        "1 min 01 s",
        "searcher-intake  placements    2  2 0",
        "gpu        2     16     4        3",
        "2026-01-01T00:00:00Z",
        "6,001 of 6,006 records",
        "none unfinished",
    ):
        assert words in text, text


def test_what_is_wrong_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Brokers, topics, services, what is due, what waits, dead letters; one line each."""
    status = _status()
    status.brokers.append(Broker(id=2, address=None, answers=False))
    status.topics[0].leaderless = [1]
    status.topics[0].behind = [0, 1]
    status.replicas["scheduler"] = []
    status.deciders[0].pending = 12
    status.deciders[0].broken = {"k3v9x2ab": "ValueError: no"}
    status.problems = ["searcher-intake: it does not answer"]
    status.consumers[0].still = [0]
    status.pools.append(PoolStatus(name="compute", agents=0, slots=0, idle=0, waiting=16))
    status.newest_letters[0].time = "2026-01-01T01:30:00.000Z"
    status.seals = SealStatus(records=9, unsealed=9, since="2026-01-01T01:58:59.000Z")
    status.unfinished_imports.append(
        UnfinishedImport(exported_from="abc", records=7, begun="t", problem="run it again")
    )
    _judge(status, NOW)
    assert status.problems == [
        "broker 2 (gone) does not answer",
        "pools: nobody leads partition 1",
        "pools: a replica of partition 0, 1 is behind",
        "run it again",
        "scheduler: no replica runs",
        "searcher: 12 decisions are due",
        "searcher: cannot go on with k3v9x2ab: ValueError: no",
        "searcher-intake: stands still, 2 records behind on placements",
        "pool compute: 16 allocations wait, and it has no agent",
        "dead letters: 1 open, the newest at 2026-01-01T01:30:00.000Z by searcher",
        (
            "seals: the ledger is not sealed (9 records, the oldest of 2026-01-01T01:58:59.000Z):"
            " give all replicas of checkpoint-gc the same secret in RUNG_SEAL_KEY"
        ),
        "searcher-intake: it does not answer",
    ]
    print_status(status)
    assert capsys.readouterr().out.startswith("WRONG: 12\n  broker 2 (gone) does not answer\n")


@pytest.mark.parametrize(
    ("lag", "expected"),
    [(10_000, None), (10_001, "searcher-intake: 10,001 records behind on placements")],
)
def test_a_forwarder_that_moves_may_be_a_little_behind(lag: int, expected: str | None) -> None:
    """As for the alert: so many records are more than a moment's work."""
    found = Consumer(
        name="searcher-intake", topic="placements", lag=lag, lags=[lag], positions=[0]
    )
    assert found.problem() == expected


@pytest.mark.parametrize(
    "time", ["2026-01-01T01:00:00Z", "2025-01-01T00:00:00Z", "x", "2026-01-01"]
)
def test_an_old_dead_letter_is_no_problem(time: str) -> None:
    """It stays on record, so it would be one for ever; an hour long it is."""
    status = _status()
    status.newest_letters[0].time = time
    _judge(status, NOW)
    assert status.problems == []


async def test_open_dead_letters_are_counted() -> None:
    """One that was dropped is none any more, and a request is no letter."""
    ledger = MemoryLedger(partitions=2)
    writer = FactWriter(ledger, source="/rung/test", origin="test")
    place: dict[str, Any] = {"topic": "pools", "partition": 0, "key": "a", "reader": "scheduler"}
    for position in range(3):
        await writer.write(
            MessageRejected(**place, position=position, reason=f"why {position}", value="{")
        )
    await writer.write(MessageDropped(**place, position=1))
    await writer.write(MessageRetryRequested(**place, position=2))
    status = ClusterStatus(ledger="l")
    await look_at_letters(ledger, status)

    assert status.dead_letters == 1
    assert [item.reason for item in status.newest_letters] == ["why 0"]


def test_acls_are_printed_as_options_of_kafkas_own_tool(rung: Rung) -> None:
    """Component by component, without asking a broker; an agent writes no decisions."""
    done = rung("cluster", "acls", "User:CN={component}", "--ledger", "kafka://127.0.0.1:1/x")
    lines = done.out.splitlines()
    agent = [line for line in lines if "'User:CN=agent'" in line]

    assert [line for line in lines if line.startswith("#")] == [f"# {it}" for it in COMPONENTS]
    assert (
        "--add --allow-principal 'User:CN=agent' --operation WRITE --topic x.experiments"
        " --resource-pattern-type literal"
    ) in agent
    assert not any("WRITE --topic x.searches" in line for line in agent)


def test_acls_as_json(rung: Rung) -> None:
    """Each rule is a record."""
    done = rung("cluster", "acls", "--ledger", "kafka://127.0.0.1:1/x", "--json")

    assert json.loads(done.out)["metrics"][-1] == {
        "principal": "User:rung-metrics",
        "operation": "READ",
        "resource": "GROUP",
        "name": "x.replicas.metrics",
        "pattern": "LITERAL",
    }


def test_acls_of_metrics() -> None:
    """It answers for what it rejected, and deletes the oldest lines where there are too many."""
    access = COMPONENTS["metrics"]

    assert access.reads == {"deadletter", "imports", "logs", "metrics", "seals"}
    assert access.appends == {"deadletter", "logs"}
    assert access.trims == {"logs"}
    assert access.groups == {"replicas.metrics"}


@pytest.mark.parametrize(
    ("before", "blocked", "arguments", "code", "words"),
    [
        (1, [], [], 0, "the logic level is raised from 1 to 2"),
        (1, [], ["--replicas-upgraded"], 0, "the logic level is raised from 1 to 2"),
        (1, [], ["--dry-run"], 0, "the logic level can be raised from 1 to 2"),
        (2, [], [], 0, "the logic level is 2: nothing to do"),
        (1, ["searcher: no"], [], 1, "stays 1, and is not raised to 2:\n  searcher: no\n"),
        (1, ["searcher: no"], ["--json"], 1, '"obstacles": [\n'),
    ],
)
def test_what_is_said_of_an_upgrade(  # noqa: PLR0917 - a row of the table
    before: int,
    blocked: list[str],
    arguments: list[str],
    code: int,
    words: str,
    rung: Rung,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was done, what could be, or who stands in the way."""

    async def upgrade(*_: object, dry_run: bool, replicas_upgraded: bool) -> Upgrade:
        assert dry_run == ("--dry-run" in arguments)
        assert replicas_upgraded == ("--replicas-upgraded" in arguments)
        return Upgrade(before=before, level=2, obstacles=blocked)

    monkeypatch.setattr(cluster_upgrade, "upgrade", upgrade)
    result = rung("cluster", "upgrade", "--ledger", "kafka://h", *arguments)
    assert result.code == code
    assert words in result.out


def test_who_stands_in_the_way_of_an_upgrade() -> None:
    """A replica that does not know the level is named with its host; a service needs one."""
    old = Replica(host="10.0.0.7", partitions={}, level=level_of_client("faust-0.11.3"))
    new = Replica(host="10.0.0.8", partitions={}, level=level_of_client(client_id_of(2)))
    newest = Replica(host="10.0.0.9", partitions={}, level=level_of_client(client_id_of(13)))
    replicas = {"searcher": [old, new], "scheduler": [newest], "checkpoint-gc": list[Replica]()}
    first, second = obstacles(replicas, 2)

    assert first.startswith("checkpoint-gc: no replica runs; start it with release ")
    assert second.startswith("searcher on 10.0.0.7 knows logic levels up to 1; replace it by ")
    assert len(obstacles(replicas, 14)) == 4
    assert obstacles({"searcher": [new]}, 2) == []


def test_replicas_of_which_a_broker_tells_no_level() -> None:
    """Only an operator can say that they know it; a known older one stands in the way."""
    untold = Replica(host="", partitions={}, level=level_of_client(""))
    old = Replica(host="10.0.0.7", partitions={}, level=1)
    replicas = {"searcher": [untold, untold], "scheduler": [untold]}
    (refused,) = obstacles(replicas, 2)
    assert refused.startswith("searcher, scheduler: this broker does not tell which levels")
    assert refused.endswith("confirm it by --replicas-upgraded")
    assert obstacles(replicas, 2, replicas_upgraded=True) == []
    (named,) = obstacles({"searcher": [untold, old]}, 2, replicas_upgraded=True)
    assert named.startswith("searcher on 10.0.0.7 knows logic levels up to 1")
    assert obstacles({"searcher": []}, 2, replicas_upgraded=True)


def test_keys_that_are_left_alone_are_one_line() -> None:
    """However many there are: they are of a level that the replicas do not know."""
    status = _status()
    (decider,) = status.deciders
    decider.left_alone, decider.level = 1200, 3
    _judge(status, NOW)
    (problem,) = status.problems
    assert problem.startswith("searcher: 1,200 keys are left alone, of logic level 3: replace its")
