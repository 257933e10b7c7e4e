"""Rendezvous of a run's ranks: the addresses, ports and keys by which they find each other.

On one agent the ranks use the loopback, and nothing is exchanged. Of a gang, each agent publishes
the addresses of its part (`AllocationAddressed`) and waits for those of the others. The ranks
connect to the first agent's ports; how they prove that they belong to the run is in `keys.py`.

An agent publishes once it has the run's data, which may take hours longer on one agent than on the
others. So they wait as long as the run is wanted: if an agent is lost, or its part fails, the
scheduler ends the run.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args

from msgspec import Struct

from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.outbox_file import Change
from rung.agent.rendezvous.key_value_store import KeyValueStore, limits_of
from rung.agent.rendezvous.keys import new_private_key, public_key_of, shared_key
from rung.agent.rendezvous.network import LOOPBACK, ReservedPort, address_of
from rung.agent.settings import Settings
from rung.events.allocation import AllocationAddressed, AllocationGranted, Share

Launcher = Literal["torch", "horovod", "tensorflow", "none"]
NOTED_EVERY_S: Final = 600.0
"""Seconds between two log lines of a waiting run that name the agents it waits for."""
_KEPT: Final = 4096
"""How many allocations are kept that are not, or not yet, known to be granted to this agent."""


class DistributedOptions(Struct, frozen=True):
    """The section `distributed` of an experiment."""

    launcher: Launcher = "torch"
    interface: str | None = None
    explicit: bool = False
    """Whether the file has that section: then a single rank gets the variables, too."""


def options_of(config: Mapping[str, Any]) -> DistributedOptions:
    """Return the options in an experiment's configuration."""
    section = config.get("distributed")
    if not isinstance(section, Mapping):
        return DistributedOptions()
    launcher = section.get("launcher") or "torch"
    if launcher not in get_args(Launcher):
        return DistributedOptions(explicit=True)
    return DistributedOptions(cast("Launcher", launcher), section.get("interface"), explicit=True)


class Part(Struct, frozen=True):
    """The address of one agent's ranks."""

    host: str
    ports: list[int]
    """The first for `ctx.distributed`, then one for each rank."""


class RendezvousInfo(Struct, frozen=True):
    """The addresses by which the ranks find each other."""

    parts: list[Part]
    """In the order of the agents' shares."""
    keys: list[str]
    """By which the ranks of this agent prove that they belong to the run; the first agent has the
    key of each, in the same order."""

    @property
    def chief(self) -> str:
        """`host:port` at which rank 0 listens for `ctx.distributed`."""
        first = self.parts[0]
        return f"{first.host}:{first.ports[0]}"


class GangAddresses:
    """The addresses that the agents of a pool have published for their parts of gangs."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[tuple[str, int], AllocationAddressed]] = {}
        self._expected: set[str] = set()
        self._changed = asyncio.Condition()

    async def take(self, fact: AllocationAddressed) -> None:
        """Add the address of one part."""
        async with self._changed:
            parts = self._addresses.setdefault(fact.allocation_id, {})
            parts[fact.agent_id, fact.incarnation] = fact
            others = [each for each in self._addresses if each not in self._expected]
            for each in others[:-_KEPT]:
                del self._addresses[each]
            self._changed.notify_all()

    def expect(self, allocation_id: str) -> None:
        """Keep the addresses of an allocation until `forget`."""
        self._expected.add(allocation_id)

    async def of(
        self, allocation_id: str, shares: Sequence[Share], note: Callable[[str], None]
    ) -> list[AllocationAddressed]:
        """Return the address of each share, once all are published.

        Args:
            allocation_id: that the shares are of.
            shares: of all agents.
            note: writes into the run's log.
        """
        wanted = [(share.agent_id, share.incarnation) for share in shares]

        def known() -> dict[tuple[str, int], AllocationAddressed]:
            return self._addresses.get(allocation_id, {})

        while True:
            try:
                async with asyncio.timeout(NOTED_EVERY_S), self._changed:
                    await self._changed.wait_for(lambda: all(who in known() for who in wanted))
            except TimeoutError:
                missing = ", ".join(who[0] for who in wanted if who not in known())
                note(f"waiting for other agents, which do not have the run's data yet: {missing}")
            else:
                return [known()[who] for who in wanted]

    def forget(self, allocation_id: str) -> None:
        """Forget an allocation that is over."""
        self._addresses.pop(allocation_id, None)
        self._expected.discard(allocation_id)


class Ports:
    """The ports of one agent's part of a run, reserved until it is over."""

    def __init__(self, ranks: int, announced: Sequence[int] = ()) -> None:
        """Reserve free ports, or as many as possible of those that were published before."""
        self._reserved: list[ReservedPort] = []
        for number in announced:
            with contextlib.suppress(OSError):  # another program uses it meanwhile
                self._reserved.append(ReservedPort(number))
        if not announced:
            self._reserved = [ReservedPort() for _ in range(1 + ranks)]
        self.numbers: Final = list(announced) or [port.number for port in self._reserved]

    def close(self) -> None:
        """Release the ports."""
        for port in self._reserved:
            port.close()


def local_info(ports: Ports) -> RendezvousInfo:
    """Return the addresses of ranks that are all on this agent."""
    return RendezvousInfo([Part(LOOPBACK, ports.numbers)], [secrets.token_hex(16)])


def address_fact(
    granted: AllocationGranted, share: Share, ports: Ports, host: str, private_key: str
) -> AllocationAddressed:
    """Return the fact that publishes the address of this agent's share."""
    return AllocationAddressed(
        pool=granted.pool,
        allocation_id=granted.allocation_id,
        agent_id=share.agent_id,
        incarnation=share.incarnation,
        host=host,
        ports=ports.numbers,
        public_key=public_key_of(private_key),
    )


def gang_info(facts: Sequence[AllocationAddressed], own: int, private_key: str) -> RendezvousInfo:
    """Return the addresses of all agents, and the keys of one of them.

    Args:
        facts: of all shares, in their order.
        own: the index of this agent's share.
        private_key: of this agent, whose public half is in its fact.

    Raises:
        BadPublicKey: an agent published something else.
    """
    others = facts if own == 0 else facts[:1]
    keys = [shared_key(private_key, it.public_key, it.allocation_id) for it in others]
    return RendezvousInfo([Part(fact.host, fact.ports) for fact in facts], keys)


class Rendezvous:
    """One agent's part in the rendezvous of a run; reserves its ports until the run is over."""

    def __init__(  # noqa: PLR0913 - its parts
        self,
        settings: Settings,
        outbox: Outbox,
        gang_addresses: GangAddresses,
        granted: AllocationGranted,
        share: int,
        *,
        announced: AllocationAddressed | None,
        private_key: str | None,
        changes: Callable[[], list[Change]],
    ) -> None:
        """Prepare the rendezvous of one share of an allocation.

        Args:
            settings: of the agent.
            outbox: of the agent.
            gang_addresses: the addresses that the agents of its pool publish.
            granted: the allocation, with the experiment's configuration.
            share: the index of this agent's share.
            announced: the address of that share, if an earlier session of the agent published it.
            private_key: the one that belongs to it.
            changes: returns changes to write in one transaction with the address.
        """
        self.announced = announced
        """The published address of this agent's share, which the others may use already."""
        self.private_key: Final = private_key or new_private_key()
        self._changes = changes
        self._settings = settings
        self._outbox = outbox
        self._gang_addresses = gang_addresses
        self._granted = granted
        self._share = share
        self._options = options_of(granted.spec.config)
        self._ports: Ports | None = None
        self._key_values: KeyValueStore | None = None
        gang_addresses.expect(granted.allocation_id)

    async def join(self, note: Callable[[str], None]) -> RendezvousInfo | None:
        """Return the addresses of all ranks; None for a single rank that needs none.

        Args:
            note: writes into the run's log, such as the agents that it waits for.

        Raises:
            NoSuchInterface: the experiment names a network interface that does not exist.
            BadPublicKey: another agent published no public key.
        """
        shares = self._granted.shares
        slots = sum(len(share.slots) for share in shares)
        if slots <= 1 and not self._options.explicit:
            return None
        gang = len(shares) > 1
        ranks = max(1, len(shares[self._share].slots))
        self._ports = Ports(ranks, self.announced.ports if self.announced else ())
        if self._share == 0 and self._options.launcher == "horovod":
            self._key_values = KeyValueStore(limits_of(max(1, slots)))
            host = "0.0.0.0" if gang else LOOPBACK  # noqa: S104 - for ranks on other machines
            await self._key_values.open(host, self._ports.numbers[1])
        if not gang:
            return local_info(self._ports)
        return await self._exchanged(self._ports, note)

    async def _exchanged(self, ports: Ports, note: Callable[[str], None]) -> RendezvousInfo:
        granted = self._granted
        interface = self._options.interface or self._settings.interface
        host = self._settings.address or address_of(interface)
        share = granted.shares[self._share]
        if self.announced is None:
            self.announced = address_fact(granted, share, ports, host, self.private_key)
            self._outbox.put(self.announced, changes=self._changes())
        facts = await self._gang_addresses.of(granted.allocation_id, granted.shares, note)
        return gang_info(facts, self._share, self.private_key)

    async def close(self) -> None:
        """Release the ports."""
        self._gang_addresses.forget(self._granted.allocation_id)
        try:
            if self._key_values is not None:
                await self._key_values.close()
        finally:
            if self._ports is not None:
                self._ports.close()
