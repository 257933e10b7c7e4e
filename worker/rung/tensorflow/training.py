"""A training: the batches of a loop that is not ours, and what happens between two of them.

A moment's order is: the script trains on the batch; then report, validate, checkpoint, leave. A
checkpoint is made after everything else of its moment, so a run that goes on begins with the next
batch. A run that finds itself at its length was killed on its way out: it reports its last
validation once more and trains nothing.

Several ranks run the same loop in step. What it decides by is the same on all of them, and each
rank's part of a batch weighs as much as it holds.
"""

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from rung import core
from rung.tensorflow import determinism, state
from rung.tensorflow.batch_size import SeenBatchSize
from rung.tensorflow.batch_split import Part, fingerprint, part_of, refuse_apart
from rung.tensorflow.checkpoint_items import Kept
from rung.tensorflow.collectives import Collective
from rung.tensorflow.metrics import Means, evaluated, numbers
from rung.tensorflow.setup import shared_seeds
from rung.tensorflow.training_data import source_of
from rung.tensorflow.untracked_variables import UntrackedVariables
from rung.training import ProgressTracker, rng
from rung.training.errors import NotResumable
from rung.training.introspection.seams import exact
from rung.training.states import rank_states


class Training:
    """Yields the batches to train on, and does between them what is due.

    Args:
        run: what `init` returned.
        data: a tf.data.Dataset of batches; or a function that gets the number of the epoch, from
            0, and returns its batches; or a list of batches. A batch is that of all slots
            together.
        keep: what is to survive, by names of your choice: models, optimizers, modules,
            variables, `tf.random.Generator`s, Keras metrics, generators of Python and NumPy, and
            whatever has `state_dict()` and `load_state_dict(state)`. Models must be built. A
            variable that training changes, and that is not kept, is refused.
        validate: returns the validation metrics; called when a validation is due and at the
            run's length. `mean` makes them of a data set.
        batches_per_epoch: how many batches make an epoch of a data set without an end.
    """

    _untracked: UntrackedVariables
    """From the first batch on."""

    def __init__(
        self,
        run: core.Context,
        data: Any,
        *,
        keep: Mapping[str, Any],
        validate: Callable[[], Mapping[str, Any]] | None = None,
        batches_per_epoch: int | None = None,
    ) -> None:
        self._ranks = run.distributed
        self._collective = Collective(self._ranks)
        self._tracker = ProgressTracker(run, f"tensorflow-{tf.__version__}", determinism.machine)
        self._exact = exact(run)
        self._source = source_of(data, run.seed, batches_per_epoch, exactly=self._exact)
        self._batch_size = SeenBatchSize(run)
        self._keep = keep
        self._validate = validate
        self._means = Means()
        self._share: Any = None
        if self._collective.several:
            self._share = tf.Variable(1.0, trainable=False, dtype=tf.float64)
        self._part = Part(None, 0, 0)
        self._stopping = False

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0."""
        return self._tracker.progress.epochs

    @property
    def step(self) -> int:
        """How many batches were trained before the one at hand."""
        return self._tracker.progress.batches

    def stop(self) -> None:
        """Checkpoint and leave after this batch; on several slots, all processes must say so."""
        self._stopping = True

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # has no types
    def averaged(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients of the whole batch, from those of the mean over this part of it.

        On one slot they are what was given. On several, all processes must call this in the same
        order; sparse gradients become dense.
        """
        determinism.tell()
        return self._collective.averaged(gradients, self._share)

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of the batch at hand: means over this process's part of it.

        They are averaged, over all slots too, and reported when that is due.
        """
        self._means.add(metrics, self._part.share)

    def mean(self, data: Iterable[Any], evaluate: Callable[..., Mapping[str, Any]]) -> Any:
        """Return means over the records of a data set, each slot evaluating some of its batches.

        Args:
            data: batches, the same on all slots.
            evaluate: gets the parts of a batch, returns means over it by name.
        """
        return evaluated(self._watched(data), evaluate, self._ranks)

    def _watched(self, data: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, each of which is a sign of life."""
        for batch in data:
            yield batch
            self._tracker.alive()

    def __iter__(self) -> Iterator[Any]:
        """Yield batch after batch, epoch after epoch, from wherever the trial is."""
        kept = Kept(self._keep, shared_seeds(self._tracker.run))
        found = self._resume(kept)
        tracker = self._tracker
        if tracker.complete:
            tracker.report_validation_again()
            return
        aside = [] if self._share is None else [self._share]
        self._untracked = UntrackedVariables(kept, aside, exactly=self._exact)
        if not found and tracker.plan.initial_validation:
            self._validated(kept)
        leaving = tracker.leaving
        while not leaving:
            leaving = yield from self._epoch(kept)
        self._store(kept)

    def _epoch(self, kept: Kept) -> Generator[Any, None, bool]:
        """Yield the rest of an epoch; return whether to leave."""
        source, tracker = self._source, self._tracker
        read = tracker.progress.batch_in_epoch
        while True:
            try:
                batch = tracker.fetched(source.next)
            except StopIteration:
                if not read:
                    raise NotResumable("the training data have no batches") from None
                break
            given = self._given(batch)
            is_last = functools.partial(source.over, look=True)
            self._batch_size.see(self._part.whole, read, is_last)
            yield given
            self._untracked.batch_trained()
            read += 1
            tracker.batch_done(1, self._part.whole)
            if tracker.report_due:
                self._report()
            due = self._leaving or tracker.validation_due or tracker.checkpoint_due
            if source.over(look=due):
                break
            if due and self._moment(kept):
                return True
        tracker.epoch_done()
        if tracker.report_due:
            self._report()
        if self._moment(kept):
            return True
        source.open(tracker.progress.epochs, 0, tracker.progress.batches, None)
        return False

    @property
    def _leaving(self) -> bool:
        return self._tracker.leaving or self._stopping

    def _given(self, batch: Any) -> Any:
        """Return this rank's part of a batch.

        Raises:
            NotResumable: the ranks read different batches.
        """
        if self._ranks.size > 1:
            refuse_apart(self._ranks.allgather([fingerprint(batch)]), "training")
        self._part = part_of(batch, self._ranks.rank, self._ranks.size)
        if self._share is not None:
            self._share.assign(self._part.share)
        return self._part.batch

    def _moment(self, kept: Kept) -> bool:
        """Validate and checkpoint what is due; return whether to leave."""
        tracker = self._tracker
        if tracker.validation_due:
            self._report()
            self._validated(kept)
        leaving = self._leaving
        if leaving or tracker.checkpoint_due:
            self._store(kept)
        return leaving

    def _report(self) -> None:
        self._tracker.report(self._means.take(self._ranks))

    def _validated(self, kept: Kept) -> None:
        if self._validate is None:
            if self._tracker.complete:
                raise NotResumable(
                    "the run is at its length, and nothing says how to validate it: give "
                    "Training(…, validate=…)"
                )
            return
        self._untracked.demand_unchanged()
        self._collective.share(kept.untrained)
        metrics = numbers(self._validate())
        self._untracked.note()
        self._tracker.validated(self._ranks.broadcast(metrics))

    def _store(self, kept: Kept) -> None:
        self._untracked.demand_unchanged()
        within = self._tracker.progress.batch_in_epoch > 0
        chief = self._ranks.is_chief

        def write(folder: Path) -> None:
            self._collective.share(kept.untrained)
            generators = rng.capture()
            state.write(folder, kept, self._ranks, self._means.state(), generators)
            if chief:
                self._source.save(folder, within=within)

        self._tracker.store(write)

    def _resume(self, kept: Kept) -> bool:
        """Go on from the trial's newest checkpoint; return whether there is one of its own."""
        ranks, source, tracker = self._ranks, self._source, self._tracker
        fresh = None if ranks.is_chief else rank_states.seed_of(ranks, tracker.run.seed, 0)
        with tracker.found() as found:
            if found is None:
                self._collective.share(kept.shared)
                self._begin_anew(kept, fresh)
                source.open(0, 0, 0, None)
                return False
            folder, own = found
            state.load_variables(folder, kept, exactly=own)
            if not own:
                self._begin_anew(kept, fresh)
                source.open(0, 0, 0, None)
                return False
            progress = tracker.progress
            if not self._exact:  # the epoch is begun again
                progress.batch_in_epoch = progress.records_in_epoch = 0
            resumed = state.Resumed(folder, ranks)
            resumed.set_pairs(kept)
            self._means.load(resumed.averages)
            if not resumed.set_own(kept):
                seed = rank_states.seed_of(ranks, tracker.run.seed, progress.batches)
                self._begin_anew(kept, seed)
            if resumed.generators is not None:
                rng.restore(resumed.generators)
            if not tracker.complete:
                batches = progress.batches
                source.open(progress.epochs, progress.batch_in_epoch, batches, folder)
            return True

    @staticmethod
    def _begin_anew(kept: Kept, seed: int | None) -> None:
        """Give a rank generators of its own, where it is not the chief."""
        if seed is not None:
            rng.seed_everything(seed)
            kept.begin_anew(seed)
