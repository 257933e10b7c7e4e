"""The ledger on Kafka; needs the extra `rung[kafka]`."""

from rung.ledger.kafka.access import Access, Granted, Rule, grant
from rung.ledger.kafka.ledger import KafkaLedger
from rung.ledger.kafka.settings import Address, KafkaSettings, parse_address
from rung.ledger.kafka.topics import Created, Finding, check, create

__all__ = [
    "Access",
    "Address",
    "Created",
    "Finding",
    "Granted",
    "KafkaLedger",
    "KafkaSettings",
    "Rule",
    "check",
    "create",
    "grant",
    "parse_address",
]
