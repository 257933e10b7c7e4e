"""What the train function gets: the position in the training data, set and kept.

`fit` begins each epoch with its first batch. In an epoch that goes on in the middle, a feed
answers for the batches that are trained already, without training them.

Where the data are a tf.data pipeline, the position is the state of its iterator, shuffle buffers
included. A shuffle draws new seeds for every iterator that is made, also for those that Keras
makes and lets go; so each epoch trains from the iterator of a fixed number, whichever process it
is trained in. Reading a state back sets how many seeds were drawn, and draws one too many where
the shuffle had read all of its input. So after an epoch that was resumed in its middle, the count
is set back to where that epoch began.

All other data are read again up to the position, with the generators as they were when the epoch
began; so is a pipeline that cannot tell its state (`Dataset.from_generator`, a `PyDataset`).
TensorFlow reads such a pipeline in a thread, ahead of training: there, only data may draw from
Python's and NumPy's generators.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rung.training.errors import NotResumable

Arrive = Callable[[], None]
Answer = Callable[[], Any]
_ITERATOR: Final = "iterator"
_BEGUN: Final = "begun"
"""The folder of the state of an iterator that nothing was read from."""
_PER_EPOCH: Final = 3
"""How many seeds an epoch may draw: for Keras' iterators at its begin and end, and for ours."""


class Feed:
    """Stands before a model's train function."""

    def __init__(self, inner: Callable[[Any], Any], per_call: int) -> None:
        self.inner: Final = inner
        self._per_call = per_call
        self._skip = 0
        self._skipped = 0
        self._arrive: Callable[[], None] = _stay
        self._answer: Callable[[], Any] = dict
        self.skipping = False
        """Whether the last call was for a batch that was trained before."""
        self.ahead = False
        """Whether a thread reads the data again, ahead of training: the generators that it draws
        from are where it left them."""

    @property
    def arrived(self) -> bool:
        """Whether all batches that were trained before have gone by."""
        return self._skipped >= self._skip

    def begin(self, epoch: int, skip: int, arrive: Arrive, answer: Answer) -> None:  # noqa: ARG002 - counts in TensorFlow's
        """Begin an epoch.

        Args:
            epoch: its number, from 0.
            skip: how many of its batches are trained already.
            arrive: is called when the position is reached.
            answer: what to answer for them.
        """
        self._skip, self._skipped = skip, 0
        self._arrive, self._answer = arrive, answer
        if skip == 0:
            arrive()

    def __call__(self, source: Any) -> Any:
        """Train with the next batch, or pass it by."""
        source = self._source(source)
        self.skipping = not self.arrived
        if not self.skipping:
            return self.inner(source)
        self._pass_by(source)
        self._skipped += self._per_call
        if self.arrived:
            self._arrive()
        return self._answer()

    def save(self, folder: Path) -> None:
        """Write the position into a folder, where it is more than a number."""

    def load(self, folder: Path, *, within: bool) -> None:
        """Take a position that `save` wrote, within an epoch or behind its end."""

    def _source(self, source: Any) -> Any:
        return source

    def _pass_by(self, source: Any) -> None:
        """Let the batches of one call go by; here the loop has read them already."""


class TensorFlowFeed(Feed):
    """Its train function reads from an iterator itself."""

    def __init__(
        self,
        inner: Callable[[Any], Any],
        per_call: int,
        steps: int | None,
        build: Callable[[Any], None],
    ) -> None:
        """Stand before a train function.

        Args:
            inner: the function.
            per_call: how many batches it takes at a time.
            steps: how many batches `fit` takes for an epoch, where that is known.
            build: makes the model's metrics, given a batch; they have no sums to set before.
        """
        super().__init__(inner, per_call)
        self._steps = steps
        self._build = build
        self._peeked = 0
        self._own: Any = None
        self._within = False
        self._fresh = False
        self._epoch = 0
        self._drawn = 0
        self._begun: tuple[Path, int] | None = None
        """In a run that went on within an epoch: the state of that epoch's iterator before
        anything was read, and how many seeds were drawn by then."""
        self._counted = False
        self._behind = tempfile.TemporaryDirectory(prefix="rung-feed-")
        self._state: Path | None = None

    def begin(self, epoch: int, skip: int, arrive: Arrive, answer: Answer) -> None:
        """Begin an epoch."""
        if self._own is not None and (self._steps is not None or self._counted):
            self._drawn += 1  # Keras made one at the end of the epoch
        self._counted = self._own is not None
        self._epoch = epoch
        self._fresh = True
        super().begin(epoch, skip, arrive, answer)

    def save(self, folder: Path) -> None:
        """Write the iterator's state, if it has one."""
        if self._own is not None:
            self._written(self._own, folder)

    def load(self, folder: Path, *, within: bool) -> None:
        """Take the state of an iterator; it is set when the data are there."""
        if (folder / f"{_ITERATOR}.index").exists():
            kept = Path(self._behind.name)
            for file in folder.glob(f"{_ITERATOR}.*"):
                (kept / file.name).write_bytes(file.read_bytes())
            self._state, self._within = kept / _ITERATOR, within
        else:
            self.ahead = within

    def _source(self, source: Any) -> Any:
        if self._fresh:
            self._fresh = False
            self._own = self._opened(source)
        return self._own

    def _opened(self, given: Any) -> Any:
        """Return the epoch's iterator, at its position."""
        import tensorflow as tf  # noqa: PLC0415 - loaded by the backend
        from tensorflow.python.data.ops.iterator_ops import OwnedIterator  # noqa: PLC0415 - as above

        if not isinstance(given, OwnedIterator):
            return given  # batches that are read already
        dataset = given._dataset
        endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        if endless and self._own is not None:
            return self._own
        if not endless and not self._within:
            self._state = None
        own = given if endless else self._numbered(dataset)
        if endless and not self._tells(own):
            raise NotResumable(
                "the data given to fit() have no end, and TensorFlow cannot tell the position in "
                "them: leave .repeat() and steps_per_epoch out, or make the data set without "
                "from_generator, py_function and tf.random.* (tf.random.stateless_* will do)"
            )
        if self._skip:
            self._build(next(own if self._state is None else given))
            self._peeked = 1
        if self._state is not None:
            begun = Path(self._behind.name, _BEGUN)
            if not endless and self._written(own, begun):
                self._begun = begun / _ITERATOR, self._drawn
            _set(own, self._state)
            self._state = None
            self._peeked = self._skip
        return own

    def _numbered(self, dataset: Any) -> Any:
        """Return the iterator with the epoch's number."""
        self._drawn += 1  # the one that Keras made at the begin of the epoch
        if self._begun is not None:
            begun, self._drawn = self._begun
            _set(iter(dataset), begun)
            self._begun = None
        while self._drawn < _PER_EPOCH * self._epoch + 1:
            iter(dataset)
            self._drawn += 1
        self._drawn += 1
        return iter(dataset)

    def _pass_by(self, source: Any) -> None:
        for _ in range(self._per_call):
            if self._peeked:
                self._peeked -= 1
            else:
                next(source)

    def _tells(self, own: Any) -> bool:
        """Return whether an iterator tells its state, tried in a folder of no further use."""
        with tempfile.TemporaryDirectory(prefix="rung-feed-") as folder:
            return self._written(own, Path(folder))

    def _written(self, own: Any, folder: Path) -> bool:
        """Write an iterator's state, and return whether it has one."""
        import tensorflow as tf  # noqa: PLC0415 - loaded by the backend

        try:
            tf.train.Checkpoint(iterator=own).write(str(folder / _ITERATOR))
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, ValueError):
            for file in folder.glob(f"{_ITERATOR}.*"):
                file.unlink()
            return False
        return True


def _set(iterator: Any, state: Path) -> None:
    """Set an iterator to a state that was written."""
    import tensorflow as tf  # noqa: PLC0415 - loaded by the backend

    tf.train.Checkpoint(iterator=iterator).read(str(state)).assert_consumed()


def _stay() -> None:
    """Do nothing on arrival."""
