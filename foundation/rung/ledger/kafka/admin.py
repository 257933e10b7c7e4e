"""What an operator's tools do with topics and ACLs, by kafka-python: made, trimmed, settings read.

It blocks, so its calls run on a thread. Whoever makes or checks no topics does not import it: that
takes a third of a second, which services and agents need not spend.
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
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from rung.events.errors import LedgerError
from rung.ledger.kafka.access import Rule
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import failed, passes

_ALREADY_EXISTS: Final = 36
_RIGHT: Final = "DESCRIBE_CONFIGS"
_ANY_HOST: Final = "*"

T = TypeVar("T")


async def make(cluster: Cluster, topics: Mapping[str, Mapping[str, object]]) -> None:
    """Make topics; those that somebody else made meanwhile stay as they are.

    Args:
        cluster: where.
        topics: by their names on the cluster, each as kafka-python describes a new one.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses.
    """
    timeout_ms = int(cluster.settings.request_timeout_s * 500)

    def ask(client: Any) -> Any:
        try:
            answer = client.create_topics(topics, timeout_ms=timeout_ms, raise_errors=False)
        except RuntimeError as error:  # how kafka-python says that the controller moved twice
            raise theirs.NotControllerError(*error.args) from error
        return answer["topics"]

    async def attempt() -> None:
        for answer in await _asked(cluster, ask):
            code, name = answer["error_code"], answer["name"]
            if code in {0, _ALREADY_EXISTS}:
                continue
            error = failed(code)
            if passes(error):
                raise error
            why = answer.get("error_message") or str(error)
            raise LedgerError(
                f"{cluster.address}: the topic {name} could not be made: {why}"
            ) from error

    await cluster.persist(attempt, "making topics")


async def described(
    cluster: Cluster, topics: Sequence[str]
) -> dict[str, Mapping[str, str] | None]:
    """Return the settings of those topics that are there, None where this user may not read them.

    Some brokers do not tell all settings, or none.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses.
    """
    there = [name for name in topics if name in cluster.topics]
    if not there:
        return {}

    def ask(client: Any) -> dict[str, Mapping[str, str] | None]:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in there]
        try:
            answer = client.describe_configs(resources, config_filter="all").get("topic", {})
        except theirs.IncompatibleBrokerVersion:
            return {name: {} for name in there}
        found: dict[str, Mapping[str, str] | None] = {
            name: {key: entry["value"] or "" for key, entry in answer.get(name, {}).items()}
            for name in there
        }
        silent = [name for name in there if not found[name]]
        return {**found, **(_without_right(client, silent) if silent else {})}

    async def attempt() -> dict[str, Mapping[str, str] | None]:
        return await _asked(cluster, ask)

    return await cluster.persist(attempt, "reading the topics' settings")


async def remove(cluster: Cluster, topic: str, partition: int, position: int) -> None:
    """Remove the records of a partition before a position.

    Args:
        cluster: where.
        topic: its name on the cluster.
        partition: of it.
        position: the first one that stays.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses, or cannot remove records.
    """

    def ask(client: Any) -> None:
        try:
            client.delete_records({TopicPartition(topic, partition): position})
        except theirs.IncompatibleBrokerVersion as error:
            raise LedgerError(
                f"{cluster.address}: its brokers cannot remove records on demand; set the "
                f"retention of the topic {topic} instead"
            ) from error

    async def attempt() -> None:
        await _asked(cluster, ask)

    await cluster.persist(attempt, f"trimming {topic}/{partition}")


async def allowed(cluster: Cluster) -> list[Rule]:
    """Return what principals may do with topics and groups, from any host.

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
        return await _asked(cluster, ask)

    return await cluster.persist(attempt, "reading the ACLs")


async def allow(cluster: Cluster, rules: Sequence[Rule]) -> None:
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
        await _asked(cluster, ask)

    await cluster.persist(attempt, "adding ACLs")


@contextlib.contextmanager
def _explained(cluster: Cluster) -> Iterator[None]:
    """Say what to do about a refusal of ACLs.

    Raises:
        LedgerError: there is one.
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


def _without_right(client: Any, silent: Sequence[str]) -> dict[str, Mapping[str, str] | None]:
    """Return why nothing was told about topics: kafka-python drops the code that says it."""
    why: dict[str, Mapping[str, str] | None] = {}
    for topic in client.describe_topics(silent):
        if topic["error_code"]:
            raise theirs.for_code(topic["error_code"])(topic["name"])
        rights = topic.get("authorized_operations")
        if rights is not None and _RIGHT in rights:  # a broker that has not heard of it yet
            raise theirs.UnknownTopicOrPartitionError(topic["name"])
        why[topic["name"]] = {} if rights is None else None
    return why


async def _asked(cluster: Cluster, ask: Callable[[Any], T]) -> T:
    """Return what a client of kafka-python was told; its errors come out as aiokafka's.

    Raises:
        KafkaError: it was told nothing.
    """
    try:
        return await asyncio.to_thread(_ask, cluster, ask)
    except theirs.KafkaError as error:
        kind = getattr(errors, type(error).__name__, errors.KafkaError)
        code = getattr(error, "errno", None)
        ours = failed(code) if code else kind()
        ours.args, ours.retriable = error.args, error.retriable
        raise ours from error


def _ask(cluster: Cluster, ask: Callable[[Any], T]) -> T:
    logging.getLogger("kafka").setLevel(logging.ERROR)  # a debug line of it tells the password
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
