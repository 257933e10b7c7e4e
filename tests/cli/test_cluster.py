"""`rung cluster`: what is refused, and what is said of a cluster that is away."""

import json
from datetime import timedelta

import click
import pytest
from msgspec import structs

from cli.conftest import Rung
from rung.cli.operations.cluster import upgrade as cluster_upgrade
from rung.cli.operations.cluster.acls import COMPONENTS
from rung.cli.operations.cluster.command import Retention
from rung.cli.operations.cluster.replicas import Replica
from rung.cli.operations.cluster.upgrade import Upgrade, obstacles
from rung.ledger import kafka
from rung.ledger.kafka import Created, Finding
from rung.runtime.assignment.settings import client_id_of, level_of_client


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

    async def upgrade(*_: object, dry_run: bool) -> Upgrade:
        assert dry_run == ("--dry-run" in arguments)
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
