"""Streams end once their experiments are out of sight.

Rights are checked when a stream is opened, and it stays open for days. So whenever the directory
changes or an experiment is moved, all open streams are looked at once more; one whose principal
does not see its experiment any more is cut. Its client asks again and is refused.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from rung.gateway.access.authorization import AUDIT, VIEW, Access
from rung.gateway.directory.directory import Directory
from rung.gateway.projections.experiments import ExperimentProjection, count_moves, projects_of
from rung.gateway.projections.read_models import ReadModels

_PERIOD_S: Final = 1.0


class _Open(NamedTuple):
    experiment_id: str | None
    access: Access
    audits: bool
    cut: Callable[[str], None]


class Sight:
    """The open streams of one gateway."""

    def __init__(self, models: ReadModels, directory: Directory) -> None:
        """Prepare it.

        Args:
            models: that have the projects of experiments.
            directory: that has the rights.
        """
        self._models = models
        self._directory = directory
        self._open: dict[int, _Open] = {}
        self._opened = 0

    @contextlib.contextmanager
    def watched(
        self, experiment_id: str | None, access: Access, cut: Callable[[str], None]
    ) -> Iterator[None]:
        """Have a stream cut once its experiment is out of sight, while the context lasts.

        One that is about no experiment is cut once its principal may see more or less of the log.
        """
        self._opened += 1
        number = self._opened
        self._open[number] = _Open(experiment_id, access, access.may(AUDIT), cut)
        try:
            yield
        finally:
            del self._open[number]

    async def watch(self) -> None:
        """Cut streams until cancelled."""
        seen: tuple[int, int] | None = None
        while True:
            now = (
                self._directory.state.version,
                self._models.peek(ExperimentProjection, count_moves) if self._open else -1,
            )
            if now != seen:
                self._look()
            seen = now
            await asyncio.sleep(_PERIOD_S)

    def _look(self) -> None:
        names = {each.experiment_id for each in self._open.values() if each.experiment_id}
        projects = self._models.peek(ExperimentProjection, lambda db: projects_of(db, names))
        now_ms = time.time_ns() // 1_000_000
        for each in list(self._open.values()):
            access = each.access
            is_valid = self._directory.is_valid(access.principal, now_ms=now_ms)
            if each.experiment_id is None:
                is_seen = access.may(AUDIT) == each.audits
            else:
                is_seen = access.may_in(VIEW, projects.get(each.experiment_id, ""))
            if not (is_valid and is_seen):
                each.cut("what it shows is out of sight")
