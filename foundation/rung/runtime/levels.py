"""The logic level of an installation: reading and raising it."""

import secrets
from importlib.metadata import version
from typing import Final

from rung.events import LedgerError, partition_of, topic
from rung.events.codec import decode_handled
from rung.events.errors import UndecodableEvent
from rung.events.installation import LEVEL, InstallationUpgraded
from rung.ledger import Ledger
from rung.runtime.fact_writer import FactWriter

_READ_MAX: Final = 2_000
_TYPES: Final = frozenset({InstallationUpgraded.TYPE})


class InstallationLevel:
    """The level on record; each call reads on from the one before."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._partition = partition_of(ledger.id, ledger.partitions(topic.IMPORTS))
        self._position: int | None = None
        self._level = 1

    async def read(self) -> int:
        """Return the level of new experiments and pools; 1 where it was never raised.

        Raises:
            LedgerError: the ledger does not answer.
        """
        if self._position is None:
            self._position = await self._ledger.start(topic.IMPORTS, self._partition)
        while records := await self._ledger.read(
            topic.IMPORTS, self._partition, self._position, _READ_MAX
        ):
            for record in records:
                self._take(record.key, record.value)
            self._position = records[-1].position + 1
        return self._level

    def _take(self, key: str, value: bytes) -> None:
        try:
            event = decode_handled(value, _TYPES)
        except UndecodableEvent:
            return  # of a newer release, or damaged: no level
        if event is not None and key == self._ledger.id:  # not of a ledger that was imported
            assert isinstance(event.data, InstallationUpgraded)
            self._level = max(self._level, event.data.level)


async def raise_level(ledger: Ledger, level: int = LEVEL) -> int:
    """Put a level on record, unless it is there already; return the level before.

    All replicas of the deciders must run a release that supports the level.

    Raises:
        LedgerError: the ledger does not answer, or its level is above that one already.
    """
    before = await InstallationLevel(ledger).read()
    if before > level:
        raise LedgerError(
            f"logic level {before} is on record, and this release knows levels up to {level}:"
            " use the newer release that raised it"
        )
    if before < level:
        data = InstallationUpgraded(ledger_id=ledger.id, level=level, release=version("rung"))
        origin = f"upgrade/{secrets.token_hex(8)}"
        await FactWriter(ledger, source="/rung/upgrade", origin=origin).write(data)
    return before
