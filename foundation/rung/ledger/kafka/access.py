"""Access rights on a cluster: what a component does with the topics of a ledger, as Kafka's ACLs.

A principal that has the rules of its component can do that and nothing else. Everybody who opens a
ledger reads who it is, and the shape and settings of all of its topics.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from rung.ledger.kafka.cluster import connect
from rung.ledger.kafka.identity import IDENTITY, names
from rung.ledger.kafka.settings import Address, KafkaSettings, parse_address

Operation = Literal["READ", "WRITE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS"]


class Access(Struct, frozen=True, kw_only=True):
    """What a component does with a ledger."""

    reads: frozenset[str] = frozenset()
    appends: frozenset[str] = frozenset()
    trims: frozenset[str] = frozenset()
    """Topics whose old records it removes."""
    groups: frozenset[str] = frozenset()
    """Consumers whose positions it commits, and groups of replicas that it joins."""

    def __or__(self, other: "Access") -> "Access":
        return Access(
            reads=self.reads | other.reads,
            appends=self.appends | other.appends,
            trims=self.trims | other.trims,
            groups=self.groups | other.groups,
        )


class Rule(Struct, frozen=True):
    """That a principal may do something, from any host."""

    principal: str
    operation: Operation
    resource: Literal["TOPIC", "GROUP"]
    name: str
    pattern: Literal["LITERAL", "PREFIXED"] = "LITERAL"

    def __str__(self) -> str:
        name = f"{self.name}*" if self.pattern == "PREFIXED" else self.name
        return f"{self.principal} {self.operation} {self.resource.lower()} {name}"

    @property
    def command(self) -> str:
        """The options of `kafka-acls.sh` that add it."""
        return (
            f"--add --allow-principal '{self.principal}' --operation {self.operation}"
            f" --{self.resource.lower()} {self.name}"
            f" --resource-pattern-type {self.pattern.lower()}"
        )


class Granted(Struct, frozen=True, kw_only=True):
    """What `grant` found and made."""

    made: list[Rule] = []
    """That were not there before; with `dry_run` those that are missing."""
    surplus: list[str] = []
    """What else the same principals may do."""


def rules(address: Address, principal: str, access: Access) -> list[Rule]:
    """Return the rules that let a principal do what a component does."""
    every = f"{address.prefix}."
    found = [
        Rule(principal, "DESCRIBE", "TOPIC", every, "PREFIXED"),
        Rule(principal, "DESCRIBE_CONFIGS", "TOPIC", every, "PREFIXED"),
    ]
    topics: tuple[tuple[Operation, frozenset[str]], ...] = (
        ("READ", access.reads | {IDENTITY}),
        ("WRITE", access.appends),
        ("DELETE", access.trims),
    )
    for operation, some in topics:
        found += [
            Rule(principal, operation, "TOPIC", address.topic(name)) for name in sorted(some)
        ]
    groups = sorted(access.groups)
    return found + [Rule(principal, "READ", "GROUP", address.topic(name)) for name in groups]


async def grant(
    url: str, settings: KafkaSettings, wanted: Iterable[Rule], *, dry_run: bool = False
) -> Granted:
    """Add the rules that are missing; none is removed.

    Args:
        url: `kafka://host:9092/prefix`.
        settings: how to reach the cluster, as a user that may ALTER it.
        wanted: the rules.
        dry_run: change nothing.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses, or its brokers have no authorizer.
    """
    from rung.ledger.kafka import admin  # noqa: PLC0415 - kafka-python, not needed everywhere

    address = parse_address(url)
    cluster = await connect(address, settings, names(address))
    try:
        there = await admin.allowed(cluster)
        wanted = list(dict.fromkeys(wanted))
        missing = [rule for rule in wanted if rule not in there]
        principals = {rule.principal for rule in wanted}
        surplus = [rule for rule in there if rule.principal in principals and rule not in wanted]
        if missing and not dry_run:
            await admin.allow(cluster, missing)
        return Granted(made=missing, surplus=sorted(str(rule) for rule in surplus))
    finally:
        await cluster.close()
