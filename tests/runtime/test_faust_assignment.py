"""What Faust is told of a cluster; the rest of it is tested on brokers, in tests/cluster."""

import asyncio
from pathlib import Path

import faust
import pytest
from faust.types import TP

from rung.events import LedgerError
from rung.ledger.kafka import KafkaSettings
from rung.runtime.assignment.faust_application import _credentials, open_assignment
from rung.runtime.assignment.settings import GroupSettings
from runtime.test_assignment import Work, settle

URL = "kafka://one:9092,[::1]:9093/lab"


async def test_the_application_shares_and_nothing_else(tmp_path: Path) -> None:
    """It joins a group named for the ledger and the service, and makes nothing of its own."""
    assignment = open_assignment(URL, service="searcher", topics=["experiments"])
    app = assignment._new_app(tmp_path)
    conf = app.conf
    assert conf.id == "lab.replicas.searcher"
    assert [str(url) for url in conf.broker_consumer] == ["kafka://one:9092", "kafka://[::1]:9093"]
    assert (conf.topic_allow_declare, conf.topic_disable_leader, conf.web_enabled) == (
        False,
        True,
        False,
    )
    assert conf.consumer_max_fetch_size == 1
    assert conf.datadir == tmp_path
    assert conf.broker_credentials is None
    assert [name for topic in app.topics for name in topic.topics] == ["lab.experiments"]
    assert assignment.partitions == {}
    assert not assignment.ready


async def test_two_replicas_are_told_apart(tmp_path: Path) -> None:
    """Their assignor knows members by their URLs, on one host too."""
    assignment = open_assignment(URL, service="searcher", topics=["experiments"])
    assert (
        assignment._new_app(tmp_path).conf.canonical_url
        != assignment._new_app(tmp_path).conf.canonical_url
    )


async def test_what_is_not_shared_out_cannot_be_held() -> None:
    """A topic that no replica subscribed to would never be given to any."""
    assignment = open_assignment(URL, service="searcher", topics=["experiments"])
    with pytest.raises(AssertionError, match="pools is not shared out"):
        await assignment.run("pools", lambda _: assignment.run("pools", None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("protocol", "mechanism"), [("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512")]
)
def test_a_login_is_passed_on(protocol: str, mechanism: str) -> None:
    """User, mechanism and encryption are those of the ledger."""
    kafka = KafkaSettings(
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        sasl_username="u",
        sasl_password="p",  # noqa: S106 - of nobody
    )
    found = _credentials(kafka)
    assert isinstance(found, faust.SASLCredentials)
    assert (found.username, found.password, found.mechanism.value) == ("u", "p", mechanism)
    assert found.protocol.value == protocol


def test_encryption_alone_is_passed_on() -> None:
    """TLS without a user, as with certificates on both sides."""
    found = _credentials(KafkaSettings(security_protocol="SSL"))
    assert isinstance(found, faust.SSLCredentials)
    assert _credentials(KafkaSettings()) is None


def test_an_url_that_is_none_is_refused() -> None:
    """As the ledger refuses it."""
    with pytest.raises(LedgerError, match="do not belong into the URL"):
        open_assignment("kafka://u@h", service="searcher", topics=[])


async def test_what_is_assigned_again_was_never_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is revoked at a rebalance; without a new assignment in time all work ends."""
    assignment = open_assignment(URL, service="searcher", topics=["experiments"])
    work = Work()
    task = asyncio.create_task(assignment.run("experiments", work))
    await assignment._give({TP("lab.experiments", 0), TP("lab.experiments", 1)})
    await assignment._take({TP("lab.experiments", 0), TP("lab.experiments", 1)})
    await settle()
    assert (work.notes, assignment.ready) == (["+0", "+1"], False)
    await assignment._give({TP("lab.experiments", 1), TP("lab.experiments", 2)})
    await settle()
    assert (work.notes[2:], assignment.ready) == (["-0", "+2"], True)
    timeouts = GroupSettings(session_timeout_s=1, rebalance_timeout_s=1)
    monkeypatch.setattr(assignment, "_settings", timeouts)
    await assignment._take({TP("lab.experiments", 1), TP("lab.experiments", 2)})
    async with asyncio.timeout(20):
        while len(work.notes) < 6:  # noqa: ASYNC110 - nothing says when it changes
            await asyncio.sleep(0.02)
    assert sorted(work.notes[4:]) == ["-1", "-2"]
    assert not assignment.partitions.get("experiments")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
