"""Faust is let in by brokers that want a login, encryption, or a certificate."""

import asyncio
import shutil

import pytest

from ledger.test_kafka_security import Safe, settings
from ledger.test_kafka_security import safe as safe_fixture
from rung.ledger.kafka import create, parse_address
from rung.runtime.assignment.faust_application import FaustAssignment
from rung.runtime.assignment.settings import GroupSettings
from servers import kafka as kafka_server

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not kafka_server.available(), reason=kafka_server.missing() or ""),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl"),
]

safe = safe_fixture


@pytest.mark.parametrize(
    ("listener", "protocol"),
    [("LOGIN", "SASL_PLAINTEXT"), ("TLS", "SSL"), ("BOTH", "SASL_SSL"), ("MUTUAL", "SSL")],
)
async def test_a_member_of_the_group(safe: Safe, listener: str, protocol: str) -> None:
    """The replica gets all partitions there are, works on them, and stops when it leaves."""
    kafka = settings(
        protocol,
        ca=safe.ours if "SSL" in protocol else None,
        own=safe.client if listener == "MUTUAL" else None,
    )
    url = safe.url(listener)
    await create(url, kafka, partitions=2)
    assignment = FaustAssignment(
        parse_address(url),
        kafka,
        service=f"test-{listener}",
        topics=["experiments", "searches"],
        settings=GroupSettings(),
    )
    begun, ended = set[int](), set[int]()
    both = asyncio.Event()

    async def work(partition: int) -> None:
        begun.add(partition)
        if begun == {0, 1}:
            both.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.add(partition)

    async with assignment.joined():
        holding = asyncio.create_task(assignment.run("searches", work))
        await asyncio.wait_for(both.wait(), 60)
        assert assignment.partitions == {"experiments": {0, 1}, "searches": {0, 1}}
        assert assignment.ready
    assert ended == {0, 1}
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
