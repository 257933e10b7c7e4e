"""Access to the topics of a ledger, as Kafka's ACLs: the rules that each component needs.

Every component reads the ledger's identity, and the partitions and settings of all topics.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from rung.ledger.kafka.cluster import connect
from rung.ledger.kafka.settings import IDENTITY, Address, KafkaSettings, parse_address

Operation = Literal["READ", "WRITE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS"]


class Access(Struct, frozen=True, kw_only=True):
    """The topics and groups of a ledger that a component uses."""

    reads: frozenset[str] = frozenset()
    appends: frozenset[str] = frozenset()
    trims: frozenset[str] = frozenset()
    """Topics whose oldest records it removes."""
    groups: frozenset[str] = frozenset()
    """Consumers whose positions it commits, and consumer groups that it joins."""

    def __or__(self, other: "Access") -> "Access":
        return Access(
            reads=self.reads | other.reads,
            appends=self.appends | other.appends,
            trims=self.trims | other.trims,
            groups=self.groups | other.groups,
        )


class Rule(Struct, frozen=True):
    """An ACL: a principal may do an operation, from any host."""

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
        """The options of `kafka-acls.sh` that add the rule."""
        return (
            f"--add --allow-principal '{self.principal}' --operation {self.operation}"
            f" --{self.resource.lower()} {self.name}"
            f" --resource-pattern-type {self.pattern.lower()}"
        )


class Granted(Struct, frozen=True, kw_only=True):
    """The result of `grant`."""

    made: list[Rule] = []
    """Rules that were missing; with `dry_run` they still are."""
    surplus: list[str] = []
    """Other rules of the same principals."""


def rules(address: Address, principal: str, access: Access) -> list[Rule]:
    """Return the rules of a principal for a component's access."""
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
    """Add the rules that are missing, as a user that may ALTER the cluster; none is removed.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses, or its brokers have no authorizer.
    """
    from rung.ledger.kafka import admin  # noqa: PLC0415 - kafka-python, not needed everywhere

    cluster = await connect(parse_address(url), settings)
    try:
        there = await admin.list_rules(cluster)
        wanted = list(dict.fromkeys(wanted))
        missing = [rule for rule in wanted if rule not in there]
        principals = {rule.principal for rule in wanted}
        surplus = [rule for rule in there if rule.principal in principals and rule not in wanted]
        if missing and not dry_run:
            await admin.add_rules(cluster, missing)
        return Granted(made=missing, surplus=sorted(str(rule) for rule in surplus))
    finally:
        await cluster.close()
