"""Determinism: properties of the machine on which results depend, for all frameworks."""

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from rung import core

_log = structlog.get_logger("rung")


def deterministic(run: core.Context) -> bool:
    """Return whether the experiment asks for deterministic operators."""
    return bool((run.info.trial.config.get("reproducibility") or {}).get("deterministic"))


class Machine:
    """Properties of the machine on which results depend; stored in checkpoints, and compared."""

    def __init__(self, framework: str, look: Callable[[], dict[str, str]]) -> None:
        """Take the framework and a function that returns the properties.

        Args:
            framework: its name and version.
            look: returns properties of this machine; they may depend on what was used so far.
        """
        self._framework: Final = framework
        self._look: Final = look
        self._before: Mapping[str, str] | None = None

    def state(self) -> dict[str, str]:
        """Return the properties, for a checkpoint."""
        return {"framework": self._framework} | self._look()

    def resume_from(self, state: Mapping[str, str] | None) -> None:
        """Take the properties in a checkpoint; None: an older one has none."""
        self._before = state

    def log_differences(self) -> None:
        """Log the differences, once; to be called after a batch was trained."""
        before, self._before = self._before, None
        if before is not None:
            log_differences(before, self.state())


def log_differences(before: Mapping[str, str] | None, now: Mapping[str, str]) -> None:
    """Log how this machine differs from the one that stored a checkpoint.

    Args:
        before: the properties there; None: an older checkpoint has none.
        now: the properties here.
    """
    changed = [
        f"{what} {before[what]} then, {now.get(what, 'none')} now"
        for what in sorted(before or {})
        if before is not None and now.get(what) != before[what]
    ]
    if changed:
        _log.warning(
            "this run resumes a checkpoint of a machine with other properties, so its results may"
            f" differ in the last bits: {'; '.join(changed)}"
        )
