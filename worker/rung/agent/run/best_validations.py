"""Best validations: the best value of an experiment's metric so far, read from the ledger.

The agent does not follow `experiments`, which has the facts of all trials of the installation. It
reads them when a trial asks: first backwards, to the submission of the trial's experiment, then
forwards; the next request continues from there. A ledger in a file skips other experiments; on
Kafka the first request reads what the partition got since the submission.

A validation counts as in the gateway's projection of experiments: reported by a run that is not
over, later than the trial's validation before, and finite.
"""

import asyncio
import math
from typing import Final

import structlog

from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.publisher import Publisher
from rung.core.ipc.protocol import BestFound, BestRequested
from rung.events import LedgerError, Payload, UndecodableEvent, decode, partition_of, topic
from rung.events.allocation import AllocationLost
from rung.events.experiment import ExperimentSubmitted
from rung.events.trial import RunSpec, TrialExited, TrialValidated, comparable, is_better
from rung.ledger import Ledger, Record, read_of

_KEPT: Final = 32
"""Experiments whose state is kept for the next request."""
_WITHIN_S_MAX: Final = 3600.0
_WINDOW: Final = 1_000
_WINDOW_MAX: Final = 64_000
"""Records that are read at a time while looking for a submission, the more the further back."""
_SUBMITTED: Final = ExperimentSubmitted.TYPE.encode()
_MARKS: Final = tuple(kind.TYPE.encode() for kind in (TrialValidated, TrialExited, AllocationLost))

_log = structlog.get_logger()


class BestValidations:
    """Answers the requests of an agent's trials."""

    def __init__(self, ledger: Ledger, outbox: Outbox, publisher: Publisher) -> None:
        """Read a ledger, behind what the agent's own trials have reported."""
        self._ledger = ledger
        self._outbox = outbox
        self._publisher = publisher
        self._experiments: dict[str, _Experiment] = {}
        """By id, the one of the newest request last."""

    async def answer(self, spec: RunSpec, request: BestRequested) -> BestFound:
        """Return the best validation of a run's experiment, or why it cannot be found out."""
        within_s = min(_WITHIN_S_MAX, max(0.0, request.within_s))
        where = "the trial's own reports are not on record yet"
        try:
            async with asyncio.timeout(within_s):
                await self._publisher.published(self._outbox.last)
                where = "the experiment's validations could not all be read"
                best = await self._of(spec).best()
        except TimeoutError:
            problem = f"{where} after {within_s:g} s, because the ledger is slow or away"
            return BestFound(request.number, problem=problem)
        except LedgerError as error:
            return BestFound(request.number, problem=f"{where}: {error}")
        return BestFound(request.number, best)

    def _of(self, spec: RunSpec) -> "_Experiment":
        name = spec.experiment_id
        found = self._experiments.pop(name, None) or _Experiment(self._ledger, spec)
        self._experiments[name] = found
        while len(self._experiments) > _KEPT:
            del self._experiments[next(iter(self._experiments))]
        return found


class _Experiment:
    """The best validation of one experiment, up to a position of the ledger.

    A request that is cancelled loses none of what it has read.
    """

    def __init__(self, ledger: Ledger, spec: RunSpec) -> None:
        searcher = spec.config.get("searcher") or {}
        self._metric: str | None = searcher.get("metric")
        self._smaller_is_better = bool(searcher.get("smaller_is_better", True))
        self._time_metric = spec.time_metric
        self._id = spec.experiment_id
        self._ledger = ledger
        partitions = ledger.partitions(topic.EXPERIMENTS)
        self._place = (topic.EXPERIMENTS, partition_of(self._id, partitions))
        self._searched: int | None = None
        """The submission is before this position; None: not looked for yet."""
        self._position: int | None = None
        """Up to where it is read; None while the submission is not found."""
        self._best: float | None = None
        self._over: dict[str, int] = {}
        """Trial → the number of its last run that is over."""
        self._times: dict[str, float] = {}
        """Trial → the time of its last validation."""
        self._reading = asyncio.Lock()

    async def best(self) -> float | None:
        """Return the best of what is on record now, None if there is none.

        Raises:
            LedgerError: the ledger cannot be read, or the submission is not in it any more.
        """
        async with self._reading:
            end = await self._ledger.end(*self._place)
            if self._position is None:
                self._position = await self._submission(end)
            while self._position < end:
                records, self._position = await self._read(self._position, end)
                for record in records:
                    self._take(record)
            return self._best

    async def _submission(self, end: int) -> int:
        """Return the position of the experiment's submission, which is before `end`."""
        start, window = await self._ledger.start(*self._place), _WINDOW
        before = end if self._searched is None else self._searched
        while before > start:
            begin = max(start, before - window)
            found = await self._first_submission(begin, before)
            if found is not None:
                return found
            self._searched = before = begin
            window = min(2 * window, _WINDOW_MAX)
        raise LedgerError(f"the submission of {self._id} was removed from the ledger")

    async def _first_submission(self, position: int, end: int) -> int | None:
        while position < end:
            records, position = await self._read(position, end)
            for record in records:
                if _SUBMITTED not in record.value:
                    continue
                if isinstance(_decoded(record), ExperimentSubmitted):
                    return record.position
        return None

    async def _read(self, begin: int, end: int) -> tuple[list[Record], int]:
        """Return some of the experiment's facts, and the position up to which these are all."""
        records, reached = await read_of(self._ledger, self._place, begin, end, self._id)
        return [record for record in records if record.key == self._id], reached

    def _take(self, record: Record) -> None:
        if not any(mark in record.value for mark in _MARKS):
            return
        match _decoded(record):
            case TrialExited() | AllocationLost() as end:
                over = self._over.get(end.trial_id, 0)
                self._over[end.trial_id] = max(over, end.run)
            case TrialValidated() as validated:
                if validated.run > self._over.get(validated.trial_id, 0):
                    self._validate(validated)
            case _:
                pass  # one whose text names such a type

    def _validate(self, validated: TrialValidated) -> None:
        time = comparable(validated.metrics.get(self._time_metric))
        time = float(validated.steps_completed) if time is None else time
        if time <= self._times.get(validated.trial_id, -math.inf):
            return
        self._times[validated.trial_id] = time
        value = comparable(validated.metrics.get(self._metric or ""))
        if value is None:
            return
        smaller = self._smaller_is_better
        if self._best is None or is_better(value, self._best, smaller_is_better=smaller):
            self._best = value


def _decoded(record: Record) -> Payload | None:
    """Return a record's fact, None if it cannot be decoded."""
    try:
        return decode(record.value).data
    except UndecodableEvent as error:
        _log.error("cannot read a fact", position=record.position, error=str(error))
        return None
