"""Connections to a cluster: retries, and what is logged of the client library."""

import logging
from collections.abc import Iterator
from logging.handlers import BufferingHandler

import pytest

from rung.events import LedgerUnavailable
from rung.ledger.kafka import KafkaSettings, parse_address
from rung.ledger.kafka.cluster import connect


@pytest.fixture
def log() -> Iterator[BufferingHandler]:
    """Give what reaches the root logger."""
    handler = BufferingHandler(100)
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def test_only_what_the_client_did_not_expect_is_logged(log: BufferingHandler) -> None:
    """Of each failed attempt nothing is logged: it is raised. A traceback must reach operators."""
    with pytest.raises(LedgerUnavailable, match=r"since 0.2 s .*ConnectionRefused"):
        await connect(parse_address("kafka://127.0.0.1:1"), KafkaSettings(timeout_s=0.2))
    fetcher = logging.getLogger("aiokafka.consumer.fetcher")
    fetcher.error("Failed fetch messages from 1")
    assert not log.buffer
    try:
        raise ValueError("a fault of the client")  # noqa: TRY301 - it is logged
    except ValueError:
        fetcher.exception("Unexpected error in fetcher routine")
    (record,) = log.buffer
    assert record.getMessage() == "Unexpected error in fetcher routine"
