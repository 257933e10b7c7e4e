"""What follows from the state of an experiment: the decisions, in the order of their need.

Reads the state only. Nothing here depends on which fact came last: trials to be closed are
closed, trials to be given up are given up, runs that are due are requested, room is filled, and
when no trial is left the experiment ends. Several decisions of one fact are made on small local
counts, because the state learns of them only afterwards.
"""

from rung.events import Payload
from rung.events.experiment import ExperimentEnded, ExperimentState, SearchPlanned
from rung.events.trial import (
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialClosed,
    TrialPromoted,
    TrialRequested,
    TrialStopped,
    Withdrawal,
    trial_id_of,
)
from rung.searcher.methods.actions import Open, Promote
from rung.searcher.methods.grid import Grid
from rung.searcher.rng import trial_seed
from rung.searcher.space import grid_point, sample
from rung.searcher.state import Experiment, Fate, Phase
from rung.searcher.trial import Trial


class FollowUp:
    """Collects what follows in one phase of an experiment."""

    def __init__(self, experiment_id: str, experiment: Experiment, phase: Phase) -> None:
        self._id = experiment_id
        self._experiment = experiment
        self._phase = phase
        self._tally = experiment.tally
        self._living = experiment.living
        self._created = len(experiment.trials)
        self.decisions: list[Payload] = []

    def plan(self) -> None:
        """Say what the search will be."""
        search = self._experiment.settings.search
        self.decisions.append(
            SearchPlanned(
                experiment_id=self._id,
                method=search.name,
                time_metric=search.time_metric,
                brackets=self._experiment.method.brackets(),
            )
        )

    def withdraw(self, how: Withdrawal, reason: str) -> None:
        """Withdraw every run, also one that was only asked to preempt and is now to be killed."""
        for trial in self._experiment.trials:
            if trial.running and trial.withdrawn not in {how, "kill"}:
                self._withdraw(trial, how, reason)

    def conclude(self) -> list[Payload]:
        """Add all that follows, and return it with what was there before."""
        for index, fate in self._experiment.closing.items():
            self._close(self._experiment.trials[index], fate)
        if self._phase in {"active", "paused"}:
            self._stop()
        if self._phase == "active":
            self._run()
            self._move()
        if not self._living and not self._wanted():
            self._end()
        return self.decisions

    def curb(self, trial: Trial) -> None:
        """Withdraw a run that trains on past its length."""
        overrun = trial.overrun and self._experiment.compares
        if overrun and trial.running and trial.withdrawn is None:
            reason = f"reached its length {trial.length} and trains on"
            self._withdraw(trial, "preempt", reason)

    def _wanted(self) -> bool:
        """Return whether a paused experiment has trials to come."""
        return self._phase == "paused" and bool(self._experiment.method.moves(1))

    def _close(self, trial: Trial, fate: Fate) -> None:
        self._living -= 1
        self._tally = {**self._tally, fate.state: self._tally.get(fate.state, 0) + 1}
        self.decisions.append(
            TrialClosed(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, trial.index),
                state=fate.state,
                reason=fate.reason,
                restarts=trial.restarts,
            )
        )

    def _stop(self) -> None:
        for stop in self._experiment.method.stops():
            trial = self._experiment.trials[stop.index]
            if trial.closed:
                continue  # so it is on record, from a version that judged otherwise
            self.decisions.append(
                TrialStopped(
                    experiment_id=self._id,
                    trial_id=trial_id_of(self._id, stop.index),
                    rung=stop.rung,
                    reason=stop.reason,
                )
            )
            if not trial.running:
                self._close(trial, Fate("stopped", stop.reason))
            elif trial.withdrawn is None:
                self._withdraw(trial, "preempt", f"stopped: {stop.reason}")

    def _withdraw(self, trial: Trial, how: Withdrawal, reason: str) -> None:
        self.decisions.append(
            RunWithdrawn(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, trial.index),
                run=trial.run,
                pool=self._experiment.settings.pool,
                how=how,
                reason=reason,
            )
        )

    def _run(self) -> None:
        for index, reason in self._experiment.due.items():
            trial = self._experiment.trials[index]
            self._request(trial, trial.length, reason)

    def _move(self) -> None:
        for move in self._experiment.method.moves(self._experiment.free):
            match move:
                case Open():
                    self._open(move)
                case Promote():
                    self._promote(move)

    def _open(self, move: Open) -> None:
        settings, index = self._experiment.settings, self._created
        if isinstance(self._experiment.method, Grid):
            hparams = grid_point(settings.space, index)
        else:
            hparams = sample(settings.space, settings.seed, index)
        seed = trial_seed(settings.seed, index)
        self._created += 1
        self._living += 1
        self.decisions.append(
            TrialRequested(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, index),
                index=index,
                bracket=move.bracket,
                hparams=hparams,
                seed=seed,
            )
        )
        trial = Trial(index=index, bracket=move.bracket, hparams=hparams, seed=seed)
        self._request(trial, move.length, "first run")

    def _promote(self, move: Promote) -> None:
        self.decisions.append(
            TrialPromoted(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, move.index),
                rung=move.rung,
                length=move.length,
                reason=move.reason,
            )
        )
        trial = self._experiment.trials[move.index]
        self._request(trial, move.length, f"promoted to rung {move.rung}")

    def _request(self, trial: Trial, length: int | None, reason: str) -> None:
        settings = self._experiment.settings
        source = settings.search.source_checkpoint_uuid
        trial_id = trial_id_of(self._id, trial.index)
        self.decisions.append(
            RunRequested(
                experiment_id=self._id,
                pool=settings.pool,
                slots=settings.slots,
                priority=settings.priority,
                max_slots=settings.max_slots,
                reason=reason,
                spec=RunSpec(
                    experiment_id=self._id,
                    trial_id=trial_id,
                    trial_index=trial.index,
                    run=trial.run + 1,
                    hparams=trial.hparams,
                    seed=trial.seed,
                    length=length,
                    time_metric=settings.search.time_metric,
                    restore=trial.restore or ([source] if source else []),
                    code_digest=self._experiment.code_digest,
                    config=self._experiment.config,
                ),
                submission=self._experiment.submission,
            )
        )

    def _end(self) -> None:
        good = self._tally.get("completed", 0) + self._tally.get("stopped", 0)
        state: ExperimentState = "completed" if good else "errored"
        if self._phase in {"canceling", "killing"}:
            state = "canceled"
        counts = ", ".join(f"{self._tally[name]} {name}" for name in sorted(self._tally))
        trials = "1 trial" if self._created == 1 else f"{self._created} trials"
        self.decisions.append(
            ExperimentEnded(
                experiment_id=self._id, state=state, reason=f"{trials}: {counts or 'none'}"
            )
        )
