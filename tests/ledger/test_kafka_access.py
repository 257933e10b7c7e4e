"""Each component's principal, on a broker with an authorizer: it can do what the table says."""

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from rung.cli.operations.cluster.acls import COMPONENTS, rules_of
from rung.events import TOPICS, LedgerError, LedgerRefused
from rung.ledger import Draft
from rung.ledger.kafka import KafkaLedger, KafkaSettings, Rule, create, grant, parse_address
from rung.ledger.kafka.access import Access, Granted
from servers import kafka
from servers.kafka import KafkaBroker

pytestmark = [
    pytest.mark.ledger,
    pytest.mark.skipif(not kafka.available(), reason=kafka.missing() or ""),
]

PASSWORD = "kept secret"  # noqa: S105 - of the test's broker
USERS = " ".join(f'user_{name}="{PASSWORD}"' for name in ("operator", *COMPONENTS))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a broker that knows a user for each component, and lets none do anything."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker = KafkaBroker(
        tmp_path_factory.mktemp("access"),
        listeners={"LOGIN": "SASL_PLAINTEXT"},
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:operator",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f"{login} {USERS};",
        },
    )
    broker.start()
    yield f"kafka://{broker.listener('LOGIN')}/apart"
    broker.kill()


def login(user: str) -> KafkaSettings:
    """Return a user's settings."""
    return KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=user,
        sasl_password=PASSWORD,
        timeout_s=8,
    )


def all_rules(url: str) -> list[Rule]:
    """Return the rules of all components."""
    found = rules_of(parse_address(url), "User:{component}")
    return [rule for rules in found.values() for rule in rules]


async def opened(url: str, component: str) -> KafkaLedger:
    """Open a ledger as a component, once its rights have reached the broker."""
    while True:
        try:
            return await KafkaLedger.open(url, settings=login(component))
        except LedgerError:
            continue


async def allowed(act: Awaitable[object]) -> bool:
    """Whether something is not refused."""
    try:
        await act
    except LedgerRefused:
        return False
    return True


async def read(ledger: KafkaLedger, topic: str) -> None:
    """Read a topic's first record."""
    await ledger.read(topic, 0, await ledger.start(topic, 0), 1)


async def trim(ledger: KafkaLedger, topic: str) -> None:
    """Remove a topic's records."""
    await ledger.trim(topic, 0, await ledger.end(topic, 0))


@pytest.fixture
async def granted(url: str) -> str:
    """Give a ledger on which each component has its rights."""
    await create(url, login("operator"), partitions=1)
    await grant(url, login("operator"), all_rules(url))
    return url


@pytest.mark.parametrize("component", COMPONENTS)
async def test_each_can_do_what_it_needs_and_nothing_else(granted: str, component: str) -> None:
    """Topic by topic; what is refused is refused at once."""
    access = COMPONENTS[component]
    operator = await KafkaLedger.open(granted, settings=login("operator"))
    for topic in TOPICS:
        await operator.append([Draft(topic, "k", b"{}")])  # something to read and to remove
    await operator.close()
    ledger = await opened(granted, component)
    groups = {group for it in COMPONENTS.values() for group in it.groups}
    readable = min(access.reads)
    found = Access(
        reads=frozenset([it for it in TOPICS if await allowed(read(ledger, it))]),
        appends=frozenset(
            [it for it in TOPICS if await allowed(ledger.append([Draft(it, "k", b"{}")]))]
        ),
        groups=frozenset(
            [it for it in groups if await allowed(ledger.commit(it, readable, 0, 0))]
        ),
        trims=frozenset([it for it in access.reads if await allowed(trim(ledger, it))]),
    )
    await ledger.close()
    assert found == access


async def test_rules_are_added_once(granted: str) -> None:
    """What is missing is told and added; what a principal may beyond is told, and stays."""
    rules = all_rules(granted)
    more = Rule("User:agent", "WRITE", "TOPIC", "apart.searches.v2")
    assert await grant(granted, login("operator"), [*rules, more], dry_run=True) == Granted(
        made=[more]
    )
    assert await grant(granted, login("operator"), [*rules, more]) == Granted(made=[more])
    found = Granted(made=[more])
    while found.made:  # brokers learn of rules by and by
        found = await grant(granted, login("operator"), rules)
        if not found.surplus:
            found = Granted(made=[more])
    assert found.surplus == ["User:agent WRITE topic apart.searches.v2"]


async def test_who_may_not_see_rules(granted: str) -> None:
    """A component cannot give itself rights."""
    ledger = await opened(granted, "agent")
    await ledger.close()
    with pytest.raises(LedgerError, match="wants DESCRIBE and ALTER on the cluster") as raised:
        await grant(granted, login("agent"), all_rules(granted))
    assert not raised.value.retriable


async def test_brokers_without_an_authorizer(tmp_path: Path) -> None:
    """Rules that have no effect are not added silently."""
    broker = KafkaBroker(tmp_path)
    await asyncio.to_thread(broker.start)
    try:
        with pytest.raises(LedgerError, match=r"set authorizer\.class\.name"):
            await grant(f"{broker.url}/x", KafkaSettings(), all_rules(f"{broker.url}/x"))
    finally:
        broker.kill()
