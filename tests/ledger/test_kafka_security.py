"""SASL, TLS and mutual TLS against an Apache Kafka, and what is said when they do not fit."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)
from structlog.testing import capture_logs

from rung.events import TOPICS, LedgerError, LedgerRefused, LedgerUnavailable
from rung.ledger.kafka import KafkaLedger, KafkaSettings, check, create
from servers import kafka
from servers.kafka import KafkaBroker
from support.ledger.certificates import Pair, authority, signed
from support.ledger.conformance import draft

pytestmark = [
    pytest.mark.ledger,
    pytest.mark.skipif(not kafka.available(), reason=kafka.missing() or ""),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl"),
]

HOST = "127.0.0.1"
PASSWORD = "kept secret"  # noqa: S105 - of the test's broker
LISTENERS = {
    "LOGIN": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "BOTH": "SASL_SSL",
}
USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_rung="{PASSWORD}" user_stranger="{PASSWORD}" user_reader="{PASSWORD}";'
)


@dataclass
class Safe:
    """A broker with listeners of each kind, and what its clients may hold."""

    broker: KafkaBroker
    ours: Pair
    client: Pair
    others: Pair

    def url(self, listener: str) -> str:
        """Return the URL of a ledger behind a listener."""
        return f"kafka://{self.broker.listener(listener)}/safe"


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Safe]:
    """Give such a broker."""
    folder = tmp_path_factory.mktemp("safe")
    ours, others = authority(folder, "ours"), authority(folder, "others")
    server, client = (signed(ours, folder, name, HOST) for name in ("server", "client"))
    keystore = folder / "keystore.pem"
    keystore.write_text(server.together)
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:rung;User:CN=client",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ours.certificate),
        "listener.name.mutual.ssl.client.auth": "required",
    }
    for name in ("login", "both"):
        properties[f"listener.name.{name}.sasl.enabled.mechanisms"] = "PLAIN"
        properties[f"listener.name.{name}.plain.sasl.jaas.config"] = USERS
    broker = KafkaBroker(folder / "kafka", listeners=LISTENERS, properties=properties)
    broker.start()
    yield Safe(broker, ours, client, others)
    broker.kill()


def settings(
    protocol: str, *, user: str = "rung", ca: Pair | None = None, own: Pair | None = None
) -> KafkaSettings:
    """Return settings for a protocol."""
    login = protocol.startswith("SASL")
    return KafkaSettings(
        security_protocol=protocol,
        sasl_mechanism="PLAIN" if login else None,
        sasl_username=user if login else None,
        sasl_password=PASSWORD if login else None,
        ssl_cafile=ca.certificate if ca else None,
        ssl_certfile=own.certificate if own else None,
        ssl_keyfile=own.key if own else None,
        timeout_s=8,
    )


async def works(url: str, chosen: KafkaSettings) -> None:
    """Make a ledger, check it, append to it and read."""
    await create(url, chosen, partitions=2)
    assert await check(url, chosen) == []
    ledger = await KafkaLedger.open(url, settings=chosen)
    (position,) = await ledger.append([draft("k")])
    assert await ledger.end("experiments", 1) == position + 1
    await ledger.commit("c", "experiments", 1, position)
    await ledger.close()


async def test_each_kind_works(safe: Safe) -> None:
    """User and password, encryption, both, and a certificate of the client's own."""
    await works(safe.url("LOGIN"), settings("SASL_PLAINTEXT"))
    await works(safe.url("TLS"), settings("SSL", ca=safe.ours))
    await works(safe.url("BOTH"), settings("SASL_SSL", ca=safe.ours))
    await works(safe.url("MUTUAL"), settings("SSL", ca=safe.ours, own=safe.client))


async def test_wrong_password(safe: Safe) -> None:
    """A refused login is told at once, with the variables to check and without the password."""
    chosen = KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="rung",
        sasl_password="wrong",  # noqa: S106 - on purpose
    )
    with pytest.raises(LedgerRefused, match="RUNG_KAFKA_SASL_PASSWORD") as raised:
        await KafkaLedger.open(safe.url("LOGIN"), settings=chosen)
    assert not raised.value.retriable
    assert "wrong" not in str(raised.value)
    assert "wrong" not in repr(chosen)


async def test_user_without_rights(safe: Safe) -> None:
    """A user who may not use the topics learns which rights are missing."""
    await create(safe.url("LOGIN"), settings("SASL_PLAINTEXT"), partitions=2)
    chosen = settings("SASL_PLAINTEXT", user="stranger")
    with pytest.raises(LedgerRefused, match="DESCRIBE and DESCRIBE_CONFIGS") as raised:
        await KafkaLedger.open(safe.url("LOGIN"), settings=chosen)
    assert not raised.value.retriable


async def test_user_who_may_not_read_settings(safe: Safe) -> None:
    """A check that sees nothing finds that; the ledger opens, and says what it assumes."""
    await create(safe.url("LOGIN"), settings("SASL_PLAINTEXT"), partitions=2)
    await asyncio.to_thread(let_read, safe.broker)
    reader = settings("SASL_PLAINTEXT", user="reader")
    findings = None
    while findings is None:  # rights, too, are learned by and by
        with contextlib.suppress(LedgerError):
            findings = await check(safe.url("LOGIN"), reader)
    assert {finding.found for finding in findings} == {"hidden"}
    assert len(findings) == len(TOPICS) + 1
    assert "grant this user DESCRIBE_CONFIGS" in str(findings[0])
    assert not any(finding.grave for finding in findings)
    with capture_logs() as logged:
        await (await KafkaLedger.open(safe.url("LOGIN"), settings=reader)).close()
    assert ["DESCRIBE_CONFIGS" in line["event"] for line in logged] == [True]
    with pytest.raises(LedgerError, match="could not be made: Authorization failed"):
        await create(f"{safe.url('LOGIN')}.more", reader)


def let_read(broker: KafkaBroker) -> None:
    """Let a user use all topics that begin with `safe`, but not see their settings or make any."""
    with KafkaAdminClient(bootstrap_servers=broker.address) as client:
        client.create_acls(
            [
                ACL(
                    "User:reader",
                    "*",
                    operation,
                    ACLPermissionType.ALLOW,
                    ResourcePattern(ResourceType.TOPIC, "safe", ACLResourcePatternType.PREFIXED),
                )
                for operation in (ACLOperation.READ, ACLOperation.WRITE, ACLOperation.DESCRIBE)
            ]
        )


async def test_broker_that_is_not_trusted(safe: Safe) -> None:
    """A certificate of an unknown authority is refused at once; the setting is named."""
    with pytest.raises(LedgerRefused, match="RUNG_KAFKA_SSL_CAFILE") as raised:
        await KafkaLedger.open(safe.url("TLS"), settings=settings("SSL", ca=safe.others))
    assert not raised.value.retriable


@pytest.mark.parametrize(
    ("listener", "protocol"),
    [("TLS", "PLAINTEXT"), ("LOGIN", "PLAINTEXT"), ("MUTUAL", "SSL")],
)
async def test_settings_that_do_not_fit_the_port(safe: Safe, listener: str, protocol: str) -> None:
    """A broker that hangs up, or never greets, is told in time, with what to check."""
    ca = safe.ours if protocol == "SSL" else None
    chosen = KafkaSettings(
        security_protocol=protocol,
        ssl_cafile=ca.certificate if ca else None,
        timeout_s=2,
        request_timeout_s=1,
    )
    with pytest.raises(LedgerUnavailable, match="RUNG_KAFKA_SECURITY_PROTOCOL") as raised:
        await KafkaLedger.open(safe.url(listener), settings=chosen)
    assert ("RUNG_KAFKA_SSL_CERTFILE" in str(raised.value)) == (listener == "MUTUAL")
