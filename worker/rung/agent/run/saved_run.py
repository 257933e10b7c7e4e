"""Saved run: the state of a run in the outbox, from which the next agent takes it over."""

from typing import Final

import msgspec
from msgspec import Struct, structs

from rung.agent.outbox.outbox_file import RunSaved
from rung.agent.run.ending import Conduct
from rung.events.allocation import AllocationAddressed, AllocationGranted
from rung.events.trial import Withdrawal


class SavedRun(Struct, frozen=True, kw_only=True):
    """The saved state of a run."""

    granted: AllocationGranted
    """Without the configuration, if that is stored by digest."""
    share: int
    token: str
    since: int = 0
    """The position, in the pool's facts, of the cause of the grant."""
    announced: AllocationAddressed | None = None
    """The address of this agent's part of a gang, once it is published."""
    private_key: str | None = None
    """Of the public key in that address."""
    user: int | None = None
    """Its own user id; None: the agent's."""
    processes: list[str] = []
    """Their names in the fork servers."""
    launched: bool = False
    """Whether its processes were requested."""
    started: bool = False
    """Whether one of them was created, which is on record."""
    spoke: bool = False
    """Whether one of them has connected."""
    asked: Withdrawal | None = None
    """How the scheduler asked it to end."""
    reason: str = ""
    machine: bool = False
    conduct: Conduct = Conduct()
    leave_at_ms: int = 0
    """When it is killed, Unix time in milliseconds; 0: it was not asked to end."""
    final: bool = False
    steps: int | None = None
    under_way: list[str] = []
    """Checkpoints that are staged and not uploaded yet."""

    def change(self) -> RunSaved:
        """Return the change that writes it to the outbox."""
        granted = self.granted
        if granted.spec.config_digest is not None:
            granted = structs.replace(granted, spec=structs.replace(granted.spec, config={}))
        data = _encoder.encode(structs.replace(self, granted=granted))
        return RunSaved(granted.allocation_id, data)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(SavedRun)


def saved_run(data: bytes) -> SavedRun | None:
    """Decode a saved state; None if it is of an incompatible release."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None
