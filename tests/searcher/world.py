"""A cluster on which anything may go wrong, driven by a seed.

Runs start when they get around to it, report, store checkpoints, fail, are lost, killed or
dropped, refuse their hyperparameters, end early, report NaN, train on past their length, say
everything twice; people pause, resume and cancel. After a number of such faults the world is
kind, so that every search must end. What must hold at every moment is checked at every moment.
"""

from typing import Any, Final

from msgspec import Struct

from rung.events import Payload
from rung.events.experiment import (
    ExperimentEnded,
    LimitReached,
    ResourcesRequested,
    SearchContinued,
    SearchDeferred,
    SlotTimeCounted,
)
from rung.events.trial import (
    ExitOutcome,
    MetricValue,
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialClosed,
    TrialKillRequested,
    TrialPromoted,
    TrialRequested,
    TrialStopped,
)
from rung.methods.rng import integer_below, uniform
from support.searcher.scenario import EXPERIMENT, Scenario

STEPS_MAX = 60_000
HOUR_MS = 3_600_000

ORDER_FREE = ("fail", "lose", "repeat", "pause", "overrun", "killed")
"""Faults after which a search that compares in rounds decides as if they had not been."""
ALL_FAULTS = (*ORDER_FREE, "invalid", "early", "nan", "hopeless")
AND_KILLS = (*ALL_FAULTS, "kill trial", "kill trial")
"""With users that kill trials."""
AND_RESOURCES = (*AND_KILLS, "resources", "resources")
"""With users that change priority, weight, limit and pool."""
AND_LIMITS = (*AND_RESOURCES, "slot time", "slot time", "slot-hours")
"""With slot time that is counted, and users that change the limit of it."""

_ENDS: Final[dict[str, ExitOutcome]] = {
    "fail": "failed",
    "killed": "killed",
    "invalid": "invalid_hp",
    "early": "finished",
}


def curve(index: int, time: float) -> float:
    """Return what a trial reports at a time: the same in every life of it."""
    return uniform(1, "level", index, ()) + uniform(2, "speed", index, ()) / (1.0 + time)


class Live(Struct):
    """A run that was requested and has not ended."""

    spec: RunSpec
    time: float
    pool: str
    started: bool = False
    withdrawn: str | None = None
    overruns: bool = False


class World:
    """One search on such a cluster."""

    def __init__(
        self,
        config: dict[str, Any],
        seed: int,
        faults: tuple[str, ...],
        count: int = 40,
        *,
        level: int = 1,
    ) -> None:
        self._seed = seed
        self._draws = 0
        self._faults = faults
        self._left = count
        self._limit = config["searcher"].get("max_concurrent_trials", 16)
        self._saved: dict[str, float] = {}
        self._hopeless: dict[int, bool] = {}
        self._paused = False
        self.live: dict[int, Live] = {}
        self.trials = 0
        self.closed: dict[int, TrialClosed] = {}
        self.stopped: dict[int, TrialStopped] = {}
        self.promoted: list[TrialPromoted] = []
        self.finite: set[int] = set()
        """The trials that reported a finite value."""
        self.stored: set[int] = set()
        """Those that stored a checkpoint."""
        self.ended: ExperimentEnded | None = None
        self.pool, self.priority, self.weight = "a", 42, 1.0
        self.max_slots: int | None = None
        self.changes = 0
        self.max_slot_hours: float | None = config["resources"].get("max_slot_hours")
        self.slot_hours = 0
        """As counted last."""
        self.spent: LimitReached | None = None
        self.deferred = False
        """There is more to decide."""
        self.scenario = Scenario(config, level=level)
        self._obey(self.scenario.first)

    def chance(self, limit: int) -> int:
        """Return a number below the limit."""
        self._draws += 1
        return integer_below(limit, self._seed, "world", self._draws, ())

    def run(self) -> "World":
        """Go on until the search has ended."""
        for _ in range(STEPS_MAX):
            if self.ended is not None:
                return self
            self.step()
        raise AssertionError(f"seed {self._seed}: no end after {STEPS_MAX} steps")

    def step(self) -> None:
        """Let one thing happen."""
        if self.deferred and (not self.live or self.chance(3) == 0):
            self.go_on()
        elif self._left and self.chance(6) == 0:
            self._left -= 1
            self._fault(self._faults[self.chance(len(self._faults))])
        elif self._paused and (not self.live or self.chance(20) == 0):
            self._paused = False
            self._obey(self.scenario.resume())
        elif self.live:
            self._advance(self._any())
        else:
            assert self._paused, f"seed {self._seed}: nothing runs and nothing ended"

    def _any(self) -> int:
        return list(self.live)[self.chance(len(self.live))]

    def _advance(self, index: int) -> None:
        live = self.live[index]
        if live.withdrawn and not live.started:
            self._over(index, self.scenario.drop(index))
        elif live.withdrawn and self.chance(2):
            self._over(index, self.scenario.exit(index, "preempted"))
        elif not live.started:
            live.started = True
        elif self._done(live):
            self._over(index, self.scenario.exit(index, "finished"))
        elif self._hopeless.get(index):
            self._over(index, self.scenario.exit(index, "failed"))
        else:
            live.time += 1
            self._report(live, curve(index, live.time))

    @staticmethod
    def _done(live: Live) -> bool:
        length = live.spec.length or 5
        return live.time >= (length * 3 if live.overruns else length)

    def _report(self, live: Live, loss: MetricValue) -> None:
        index = live.spec.trial_index
        if not isinstance(loss, str):
            self.finite.add(index)
        self._obey(self.scenario.report(index, live.time, loss))
        checkpoint = f"{index}@{live.time}"
        self._saved[checkpoint] = live.time
        if self.chance(2):
            self.stored.add(index)
            self._obey(self.scenario.store(index, int(live.time * 100), checkpoint))

    def _fault(self, fault: str) -> None:
        if fault == "pause":
            self._obey(self.scenario.resume() if self._paused else self.scenario.pause())
            self._paused = not self._paused
            return
        if fault == "kill trial":
            self.kill(self.chance(self.trials))
            return
        if fault == "resources":
            self._change_resources()
            return
        if fault in {"slot time", "slot-hours"}:
            self._spend() if fault == "slot time" else self._change_limit()
            return
        if not self.live:
            return
        index = self._any()
        if fault in _ENDS:
            self._over(index, self.scenario.exit(index, _ENDS[fault]))
        else:
            self._disturb(index, fault)

    def kill(self, index: int) -> None:
        """Have a user kill a trial, in whatever state it is."""
        trial_id = f"{EXPERIMENT}.{index}"
        fact = TrialKillRequested(experiment_id=EXPERIMENT, trial_id=trial_id)
        self._obey(self.scenario.tell(fact))

    def go_on(self) -> None:
        """Have the search decide the next step."""
        self.deferred = False
        self._obey(self.scenario.tell(SearchContinued(experiment_id=EXPERIMENT)))

    def _change_resources(self) -> None:
        """Have a user change resources, now and then after another one did."""
        draw = self.chance(5)
        late = self.chance(4) == 0
        fact = ResourcesRequested(
            experiment_id=EXPERIMENT,
            pool="ab"[self.chance(2)] if draw in {0, 4} else None,
            priority=1 + self.chance(99) if draw == 1 else None,
            weight=0.5 + self.chance(4) if draw == 2 else None,
            max_slots=self.chance(4) if draw in {3, 4} else None,
            version=self.changes - 1 if late else self.changes if self.chance(2) else None,
        )
        if not late:
            self.changes += 1
            self.pool = fact.pool or self.pool
            self.priority = fact.priority or self.priority
            self.weight = fact.weight or self.weight
            if fact.max_slots is not None:
                self.max_slots = fact.max_slots or None
        decisions = self.scenario.tell(fact)
        assert not late or decisions == []
        self._obey(decisions)

    def _spend(self) -> None:
        """Count some hours more, now and then twice, or as a gateway that is behind."""
        hours = self.slot_hours + self.chance(3) - 1
        self.slot_hours = max(self.slot_hours, hours)
        self._hold_to_limit(SlotTimeCounted(experiment_id=EXPERIMENT, slot_ms=hours * HOUR_MS))

    def _change_limit(self) -> None:
        """Have a user change the limit, up or down."""
        hours = float(self.chance(9))
        self.changes += 1
        self.max_slot_hours = hours or None
        self._hold_to_limit(ResourcesRequested(experiment_id=EXPERIMENT, max_slot_hours=hours))

    def _hold_to_limit(self, fact: Payload) -> None:
        """Tell something after which the limit may be reached; it is at once, and once."""
        most = self.max_slot_hours
        is_reached = most is not None and self.slot_hours >= most and self.spent is None
        decisions = self.scenario.tell(fact)
        found = [it for it in decisions if isinstance(it, LimitReached)]
        assert len(found) == is_reached, (most, self.slot_hours, decisions)
        if is_reached:
            self.spent, self._paused = found[0], False
            withdrawn = {it.trial_id for it in decisions if isinstance(it, RunWithdrawn)}
            before = {it.spec.trial_id for it in self.live.values() if it.withdrawn is None}
            assert before <= withdrawn
        self._obey(decisions)

    def _disturb(self, index: int, fault: str) -> None:
        live = self.live[index]
        match fault:
            case "lose":
                self._over(index, self.scenario.lose(index))
            case "hopeless":
                self._hopeless[index] = True
            case "overrun":
                live.overruns = True
            case "nan" if live.started:
                live.time += 1
                self._report(live, "NaN")
            case "repeat":
                self._repeat(index)
            case _:
                pass

    def _repeat(self, index: int) -> None:
        """Have an earlier run speak up, and the current one repeat itself."""
        if self.deferred:  # whatever is said, what is left to decide follows
            return
        live = self.live[index]
        if live.spec.run > 1:
            assert self.scenario.report(index, 10_000, -1.0, run=live.spec.run - 1) == []
            assert self.scenario.exit(index, "failed", run=live.spec.run - 1) == []
        if live.time > 0:
            assert self.scenario.report(index, live.time, -1.0) == []

    def _over(self, index: int, decisions: list[Payload]) -> None:
        del self.live[index]
        self._obey(decisions)

    def _obey(self, decisions: list[Payload]) -> None:  # noqa: C901 - one case per decision
        for decision in decisions:
            assert self.ended is None, decision
            match decision:
                case TrialRequested():
                    assert decision.index == self.trials
                    self.trials += 1
                case RunRequested():
                    self._request(decision)
                case RunWithdrawn():
                    live = self.live[int(decision.trial_id.rpartition(".")[2])]
                    assert (live.spec.run, live.pool) == (decision.run, decision.pool)
                    live.withdrawn = decision.how
                case TrialClosed():
                    index = int(decision.trial_id.rpartition(".")[2])
                    assert index not in self.live
                    assert index not in self.closed
                    self.closed[index] = decision
                case TrialStopped():
                    self.stopped[int(decision.trial_id.rpartition(".")[2])] = decision
                case TrialPromoted():
                    self.promoted.append(decision)
                case SearchDeferred():
                    assert not self.deferred
                    self.deferred = True
                case ExperimentEnded():
                    self.ended = decision
                case _:
                    pass
        assert not self._limit or len(self.live) <= self._limit
        if self.ended is not None:
            assert not self.live
            assert len(self.closed) == self.trials

    def _request(self, wanted: RunRequested) -> None:
        assert self.spent is None
        spec = wanted.spec
        index = spec.trial_index
        weight = 1.0 if wanted.submission is None else wanted.submission.weight
        has = wanted.pool, wanted.priority, wanted.max_slots, weight
        assert has == (self.pool, self.priority, self.max_slots, self.weight)
        assert not self._paused or self.scenario.state.phase == "active"
        assert index not in self.live
        assert index not in self.closed
        time = self._saved[spec.restore[0]] if spec.restore else 0.0
        self.live[index] = Live(spec, time, wanted.pool)
