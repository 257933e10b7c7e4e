"""A cluster on which anything may go wrong, driven by a seed.

Runs start when they get around to it, report, store checkpoints, fail, are lost, killed or
dropped, refuse their hyperparameters, end early, report NaN, train on past their length, say
everything twice; people pause, resume and cancel. After a number of such faults the world is
kind, so that every search must end. What must hold at every moment is checked at every moment.
"""

from typing import Any, Final

from msgspec import Struct

from rung.events import Payload
from rung.events.experiment import ExperimentEnded
from rung.events.trial import (
    ExitOutcome,
    MetricValue,
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialClosed,
    TrialPromoted,
    TrialRequested,
    TrialStopped,
)
from rung.methods.rng import integer_below, uniform
from searcher.scenario import Scenario

STEPS_MAX = 60_000

ORDER_FREE = ("fail", "lose", "repeat", "pause", "overrun", "killed")
"""Faults after which a search that compares in rounds decides as if they had not been."""
ALL_FAULTS = (*ORDER_FREE, "invalid", "early", "nan", "hopeless")

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
        self.ended: ExperimentEnded | None = None
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
        if self._left and self.chance(6) == 0:
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
        self._obey(self.scenario.report(index, live.time, loss))
        checkpoint = f"{index}@{live.time}"
        self._saved[checkpoint] = live.time
        if self.chance(2):
            self._obey(self.scenario.store(index, int(live.time * 100), checkpoint))

    def _fault(self, fault: str) -> None:
        if fault == "pause":
            self._obey(self.scenario.resume() if self._paused else self.scenario.pause())
            self._paused = not self._paused
            return
        if not self.live:
            return
        index = self._any()
        if fault in _ENDS:
            self._over(index, self.scenario.exit(index, _ENDS[fault]))
        else:
            self._disturb(index, fault)

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
        live = self.live[index]
        if live.spec.run > 1:
            assert self.scenario.report(index, 10_000, -1.0, run=live.spec.run - 1) == []
            assert self.scenario.exit(index, "failed", run=live.spec.run - 1) == []
        if live.time > 0:
            assert self.scenario.report(index, live.time, -1.0) == []

    def _over(self, index: int, decisions: list[Payload]) -> None:
        del self.live[index]
        self._obey(decisions)

    def _obey(self, decisions: list[Payload]) -> None:
        for decision in decisions:
            assert self.ended is None, decision
            match decision:
                case TrialRequested():
                    assert decision.index == self.trials
                    self.trials += 1
                case RunRequested():
                    self._request(decision.spec)
                case RunWithdrawn():
                    live = self.live[int(decision.trial_id.rpartition(".")[2])]
                    assert live.spec.run == decision.run
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
                case ExperimentEnded():
                    self.ended = decision
                case _:
                    pass
        assert not self._limit or len(self.live) <= self._limit
        if self.ended is not None:
            assert not self.live
            assert len(self.closed) == self.trials

    def _request(self, spec: RunSpec) -> None:
        index = spec.trial_index
        assert not self._paused or self.scenario.state.phase == "active"
        assert index not in self.live
        assert index not in self.closed
        time = self._saved[spec.restore[0]] if spec.restore else 0.0
        self.live[index] = Live(spec, time)
