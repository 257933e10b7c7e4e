"""What exact resuming adds to a trainer, and to each of its checkpoints.

With the trainer's own files a checkpoint holds every generator at the moment and at the epoch's
beginning, and the losses since the trainer last logged, which it forgets itself; of each rank.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rung.torch import external_loop
from rung.training import ProgressTracker, rng
from rung.training.states import rank_states
from rung.transformers.exact.data_parallel import DataParallel
from rung.transformers.exact.seeded_data import Seeds, seed_data, seed_evaluations


class ExactTraining:
    """The exact part of a callback."""

    def __init__(self, tracker: ProgressTracker) -> None:
        """Begin at the trial's beginning.

        Args:
            tracker: of the run.
        """
        self._tracker: Final = tracker
        self._ranks: Final = tracker.run.distributed
        self._seeds: Final = Seeds(tracker.run.seed)
        self._trainer: Any = None
        self._parallel: DataParallel | None = None
        self._new = external_loop.new_generators(tracker.run, 0)
        self._kept: dict[str, Any] | None = None
        self._begun: rng.Generators | None = None

    def take_over(self, trainer: Any) -> None:
        """Change how a trainer gets its data, before it trains.

        Raises:
            NotResumable: an argument or the data of the trainer stand in the way.
        """
        run = self._tracker.run
        self._trainer = trainer
        external_loop.tell(run, trainer.args.device)
        seed_data(trainer, self._seeds)
        seed_evaluations(trainer, run.seed, lambda: self._tracker.progress.batches)
        if self._ranks.size > 1:
            self._parallel = DataParallel(trainer, self._tracker)
        trainer.get_batch_samples = functools.partial(self._fetch, trainer.get_batch_samples)

    @contextlib.contextmanager
    def resuming(self, kept: Mapping[str, Any]) -> Iterator[None]:
        """Have the trainer go on, within the block, as if nothing had happened.

        Args:
            kept: what `state` returned, gathered; without it, of a run that was not exact, only
                the position is set.
        """
        if "now" in kept:
            self._kept = self._share(kept)
        trainer, progress = self._trainer, self._tracker.progress
        original = trainer._init_training_state

        def position(*arguments: Any, **named: Any) -> tuple[int, int]:
            original(*arguments, **named)  # which knows no epochs of a stream
            steps = progress.batch_in_epoch * trainer.args.gradient_accumulation_steps
            return progress.epochs, steps

        trainer._init_training_state = position
        try:
            yield
        finally:
            del trainer._init_training_state

    def train_began(self) -> None:
        """Prepare the ranks, and give the trainer back the losses that it had not logged yet."""
        if self._parallel is not None:
            self._parallel.settle()
        if self._kept is not None:
            trainer = self._trainer
            trainer._tr_loss += self._kept["loss"]
            trainer._total_loss_scalar = self._kept["total"]
            trainer._globalstep_last_logged = self._kept["logged_at"]

    def epoch_begins(self) -> None:
        """Set the generators for the hooks of an epoch's begin, which draw from them."""
        progress = self._tracker.progress
        self._seeds.begin(progress.epochs)
        if self._parallel is not None:
            steps = self._trainer.args.gradient_accumulation_steps
            self._parallel.begin(progress.batch_in_epoch * steps)
        if self._kept is not None:
            if not progress.batch_in_epoch:
                rng.restore(rng.from_json(self._kept["now"]))
        elif self._new is not None:
            rng.restore(self._new)
        self._new = None

    def epoch_began(self) -> None:
        """Remember the generators, or set them to what they were when the epoch had begun."""
        if self._kept is not None and self._tracker.progress.batch_in_epoch:
            rng.restore(rng.from_json(self._kept["begun"]))
        self._begun = rng.capture()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint of this moment holds of this rank."""
        trainer, begun = self._trainer, self._begun
        assert begun is not None
        return {
            "now": rng.to_json(rng.capture()),
            "begun": rng.to_json(begun),
            "loss": float(trainer._tr_loss),
            "total": float(trainer._total_loss_scalar),
            "logged_at": int(trainer._globalstep_last_logged),
        }

    def _fetch(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Fetch a step's batches; behind the first ones of a run, the position is reached."""
        fetched = original(*arguments, **named)
        kept, self._kept = self._kept, None
        if kept is not None and self._tracker.progress.batch_in_epoch:
            rng.restore(rng.from_json(kept["now"]))
        return fetched

    def _share(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return what this rank goes on from; on another number of ranks than before, its part."""
        said = kept.get("ranks") or [kept]
        share = rank_states.share_of(self._ranks, kept)
        if len(said) == self._ranks.size and share.own is not None:
            return share.own
        mean = sum(each["loss"] for each in said) / len(said)
        found = (share.own or dict(said[0])) | {"loss": mean}
        new = external_loop.new_generators(self._tracker.run, self._tracker.progress.batches)
        if new is not None:
            found |= {"now": rng.to_json(new), "begun": rng.to_json(new)}
        return found
