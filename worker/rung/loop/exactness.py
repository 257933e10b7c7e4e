"""What cannot be exact in a framework's loop: told in the trial's log, not hidden."""

from collections.abc import Callable, Mapping
from typing import Final

import structlog
import torch

from rung import core
from rung.loop.seeding import deterministic
from rung.torch import exactness

_log = structlog.get_logger("rung")


def tell(run: core.Context, device: torch.device) -> None:
    """Say in the log what cannot be exact on a device, where a framework trains with torch."""
    if run.distributed.is_chief:
        where = exactness.Circumstances(device, deterministic(run), run.distributed.size)
        for text in exactness.of_device(where):
            _log.warning(text)


class Machine:
    """What results depend on beside the script; kept in checkpoints, compared by the next run."""

    def __init__(self, framework: str, look: Callable[[], dict[str, str]]) -> None:
        """Take what is known.

        Args:
            framework: its name and version.
            look: says what a machine is; what it says may depend on what was used already.
        """
        self._framework: Final = framework
        self._look: Final = look
        self._before: Mapping[str, str] | None = None

    def state(self) -> dict[str, str]:
        """Return what to keep."""
        return {"framework": self._framework} | self._look()

    def goes_on_from(self, state: Mapping[str, str] | None) -> None:
        """Take what was kept; None where it was not yet noted."""
        self._before = state

    def tell_differences(self) -> None:
        """Say once in the log what is another now; call it when a batch was trained."""
        before, self._before = self._before, None
        if before is not None:
            exactness.tell_differences(before, self.state())
