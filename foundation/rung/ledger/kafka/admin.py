"""Administration of topics and ACLs by kafka-python.

Its calls block, so they run on a thread. It is imported only where it is needed: that takes a
third of a second.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from aiokafka import errors
from kafka import TopicPartition
from kafka import errors as theirs
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from rung.events.errors import LedgerError
from rung.ledger.kafka.access import Rule
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import error_of, is_transient

_ALREADY_EXISTS: Final = 36
_ANY_HOST: Final = "*"

T = TypeVar("T")


async def create_topics(cluster: Cluster, topics: Mapping[str, Mapping[str, object]]) -> None:
    """Create topics; those that exist by now stay as they are.

    Args:
        cluster: of the topics.
        topics: by their names on the cluster, each as kafka-python describes a new one.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses.
    """
    timeout_ms = int(cluster.settings.request_timeout_s * 500)

    def ask(client: Any) -> Any:
        try:
            answer = client.create_topics(topics, timeout_ms=timeout_ms, raise_errors=False)
        except RuntimeError as error:  # the controller moved twice
            raise theirs.NotControllerError(*error.args) from error
        return answer["topics"]

    async def attempt() -> None:
        for answer in await _call(cluster, ask):
            code, name = answer["error_code"], answer["name"]
            if code in {0, _ALREADY_EXISTS}:
                continue
            error = error_of(code)
            if is_transient(error):
                raise error
            why = answer.get("error_message") or str(error)
            raise LedgerError(
                f"{cluster.address}: the topic {name} could not be made: {why}"
            ) from error

    await cluster.persist(attempt, "making topics")


async def delete_records(cluster: Cluster, topic: str, partition: int, position: int) -> None:
    """Delete the records of a partition before a position.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses.
    """

    def ask(client: Any) -> None:
        client.delete_records({TopicPartition(topic, partition): position})

    async def attempt() -> None:
        await _call(cluster, ask)

    await cluster.persist(attempt, f"trimming {topic}/{partition}")


async def list_rules(cluster: Cluster) -> list[Rule]:
    """Return the ACLs that allow something from any host.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses, or its brokers have no authorizer.
    """
    everything = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )

    def ask(client: Any) -> list[Rule]:
        with _explained(cluster):
            found, _ = client.describe_acls(everything)
        return [
            Rule(
                acl.principal,
                acl.operation.name,
                acl.resource_pattern.resource_type.name,
                acl.resource_pattern.resource_name,
                acl.resource_pattern.pattern_type.name,
            )
            for acl in found
            if acl.host == _ANY_HOST
        ]

    async def attempt() -> list[Rule]:
        return await _call(cluster, ask)

    return await cluster.persist(attempt, "reading the ACLs")


async def add_rules(cluster: Cluster, rules: Sequence[Rule]) -> None:
    """Add rules.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses, or its brokers have no authorizer.
    """
    acls = [
        ACL(
            rule.principal,
            _ANY_HOST,
            ACLOperation[rule.operation],
            ACLPermissionType.ALLOW,
            ResourcePattern(
                ResourceType[rule.resource], rule.name, ACLResourcePatternType[rule.pattern]
            ),
        )
        for rule in rules
    ]

    def ask(client: Any) -> None:
        with _explained(cluster):
            for error in client.create_acls(acls)["failed"]:
                raise error(f"of {len(acls)} ACLs")

    async def attempt() -> None:
        await _call(cluster, ask)

    await cluster.persist(attempt, "adding ACLs")


@contextlib.contextmanager
def _explained(cluster: Cluster) -> Iterator[None]:
    """Turn a refusal of ACLs into an error that says what to do.

    Raises:
        LedgerError: it was refused.
    """
    try:
        yield
    except theirs.SecurityDisabledError as error:
        raise LedgerError(
            f"{cluster.address}: its brokers have no authorizer, so that everybody may do "
            "everything; set authorizer.class.name in their configuration"
        ) from error
    except theirs.ClusterAuthorizationFailedError as error:
        raise LedgerError(
            f"{cluster.address}: this user may not see or set ACLs; it wants DESCRIBE and ALTER "
            "on the cluster"
        ) from error


async def _call(cluster: Cluster, ask: Callable[[Any], T]) -> T:
    """Call a client of kafka-python on a thread; its errors come out as aiokafka's.

    Raises:
        KafkaError: there is no answer.
    """
    try:
        return await asyncio.to_thread(_call_blocking, cluster, ask)
    except theirs.KafkaError as error:
        kind = getattr(errors, type(error).__name__, errors.KafkaError)
        code = getattr(error, "errno", None)
        ours = error_of(code) if code else kind()
        ours.args, ours.retriable = error.args, error.retriable
        raise ours from error


def _call_blocking(cluster: Cluster, ask: Callable[[Any], T]) -> T:
    logging.getLogger("kafka").setLevel(logging.ERROR)  # one of its debug lines holds the password
    limit_ms = int(cluster.settings.request_timeout_s * 1000)
    servers = cluster.brokers.values() or cluster.address.servers
    with KafkaAdminClient(
        bootstrap_servers=[str(server) for server in servers],
        client_id="rung",
        bootstrap_timeout_ms=limit_ms,
        request_timeout_ms=limit_ms,
        **cluster.settings.login(),
    ) as client:
        return ask(client)
