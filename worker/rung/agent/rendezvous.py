"""One agent's part in bringing the ranks of a run together."""

from collections.abc import Callable

from rung.agent.key_values import KeyValues, limits_of
from rung.agent.launcher import Wanted
from rung.agent.meeting import Meeting, Ports, addressed, alone, met
from rung.agent.network import LOOPBACK, address_of
from rung.agent.node import Node
from rung.events.allocation import AllocationGranted


class Rendezvous:
    """Finds out where the ranks of a run meet; keeps the ports free until it is over."""

    def __init__(self, node: Node, granted: AllocationGranted, share: int, want: Wanted) -> None:
        self._node = node
        self._granted = granted
        self._share = share
        self._wanted = want
        self._ports: Ports | None = None
        self._values: KeyValues | None = None
        node.introductions.expect(granted.allocation_id)

    async def meeting(self, note: Callable[[str], None]) -> Meeting | None:
        """Return where they meet; None for a single one that nobody told of ranks.

        Args:
            note: tells the run's log for whom it waits.

        Raises:
            NoSuchInterface: the experiment names a network interface that is not there.
        """
        shares = self._granted.shares
        slots = sum(len(share.slots) for share in shares)
        if slots <= 1 and not self._wanted.explicit:
            return None
        gang = len(shares) > 1
        ranks = max(1, len(shares[self._share].slots))
        self._ports = Ports(ranks)
        if self._share == 0 and self._wanted.launcher == "horovod":
            self._values = KeyValues(limits_of(max(1, slots)))
            host = "0.0.0.0" if gang else LOOPBACK  # noqa: S104 - ranks on other machines ask
            await self._values.open(host, self._ports.numbers[1])
        if not gang:
            return alone(self._ports)
        return await self._introduced(self._ports, note)

    async def _introduced(self, ports: Ports, note: Callable[[str], None]) -> Meeting:
        node, granted = self._node, self._granted
        interface = self._wanted.interface or node.settings.interface
        host = node.settings.address or address_of(interface)
        share = granted.shares[self._share]
        node.spool.put(addressed(granted, share, ports, host))
        return met(await node.introductions.of(granted.allocation_id, granted.shares, note))

    async def close(self) -> None:
        """Give the ports back."""
        self._node.introductions.forget(self._granted.allocation_id)
        try:
            if self._values is not None:
                await self._values.close()
        finally:
            if self._ports is not None:
                self._ports.close()
