"""A tf.data pipeline and the position in it.

The position is the state of the iterator, shuffle buffers included. A shuffle draws new seeds for
every iterator that is made, so each epoch trains from the iterator of its number, whichever
process it is trained in. Reading the state of one may draw, too, or may not; therefore that of a
fresh iterator is put back behind it. What a `.repeat()` draws from a shuffle behind it cannot be
put back, so that is refused. A shuffle of a shuffle draws only when it is read, so such a pipeline
is read again from its first epoch on.

A pipeline that cannot tell its state (it calls Python, or operators with
a state of their own) is read again up to the position, with Python's and NumPy's generators as
they were when the epoch began; TensorFlow reads it in threads, ahead of training, so that is exact
only where nothing else draws from them. The log says so.
"""

import collections
import json
import tempfile
from pathlib import Path
from typing import Any, Final

import structlog
import tensorflow as tf
from tensorflow.python.data.experimental.ops.shuffle_ops import _ShuffleAndRepeatDataset
from tensorflow.python.data.ops.repeat_op import _RepeatDataset
from tensorflow.python.data.ops.shuffle_op import _ShuffleDataset
from tensorflow.python.data.ops.zip_op import _ZipDataset

from rung.training import rng
from rung.training.errors import NotResumable

_ITERATOR: Final = "iterator"
_POSITION: Final = "position.json"
_SHUFFLES: Final = (_ShuffleDataset, _ShuffleAndRepeatDataset)
_REPEATS: Final = (_RepeatDataset, _ShuffleAndRepeatDataset)

_log = structlog.get_logger(__name__)


class Pipeline:
    """The batches of a tf.data.Dataset."""

    def __init__(self, data: Any, per_epoch: int | None) -> None:
        """Take a data set, of so many batches an epoch where it has no end.

        Raises:
            NotResumable: its position could not be set again.
        """
        if _repeats_a_shuffle(data):
            raise NotResumable(
                "the data set repeats a shuffle, and TensorFlow cannot set the position in that "
                "exactly: leave .repeat() out, for every epoch reads the data set again, in "
                "another order"
            )
        length = int(data.cardinality())
        self._endless: Final = length == tf.data.INFINITE_CARDINALITY
        if per_epoch is not None and not self._endless:
            raise NotResumable(
                f"batches_per_epoch={per_epoch} would read a data set with an end piece by "
                "piece: leave it out, or shorten the data set by .take(…)"
            )
        if data.options().deterministic is False:
            _log.warning(
                "the data set has Options.deterministic = False: its order depends on how fast "
                "threads are, so no two runs train on the same batches"
            )
        self._data = data
        self._length = per_epoch if self._endless else length if length >= 0 else None
        self._made = 0
        self._read = 0
        self._iterator: Any = None
        self._begun: rng.Generators | None = None
        self._looked: list[Any] = []
        self._behind: dict[str, bytes] | None = None
        self._named = False
        self._late: Final = _draws_late(data)
        self._again = self._late
        if self._late:
            self._name("a reshuffling .shuffle() lies beneath another, or joins other data")

    def open(self, epoch: int, batch: int, total: int, folder: Path | None) -> None:
        """Go to a batch of an epoch."""
        self._forget()
        self._read = batch
        if folder is None and self._endless and self._iterator is not None:
            return
        self._begun = rng.capture()
        wanted = 1 if self._endless else epoch + 1
        while self._made < wanted:
            self._iterator = iter(self._data)
            self._made += 1
            if self._made == 1 and not self._again:
                self._try()
            if self._made < wanted and self._late:
                collections.deque(self._iterator, maxlen=0)
                rng.restore(self._begun)
        if folder is not None and (batch or self._endless):
            self._go_on(folder, total if self._endless else batch)

    def next(self) -> Any:
        """Return the next batch."""
        if self._looked:
            self._forget()
            found = self._looked.pop()
        elif self._length is not None and self._read == self._length:
            raise StopIteration
        else:
            found = next(self._iterator)
        self._read += 1
        return found

    def over(self, *, look: bool) -> bool:
        """Return whether the epoch is over."""
        if self._length is not None:
            return self._read == self._length
        if not look or self._endless:
            return False
        if not self._looked:
            self._behind = self._state()
            found = next(self._iterator, None)
            if found is None:
                return True
            self._looked.append(found)
        return False

    def save(self, folder: Path, *, within: bool) -> None:
        """Write the position."""
        if not within and not self._endless:
            return
        for name, content in (self._behind or self._state()).items():
            (folder / name).write_bytes(content)

    def _forget(self) -> None:
        """The state from before the look ahead is no longer of use."""
        self._behind = None

    def _go_on(self, folder: Path, batches: int) -> None:
        """Go to a position within the iterator that was made."""
        if (folder / f"{_ITERATOR}.index").exists():
            with tempfile.TemporaryDirectory(prefix="rung-data-") as behind:
                fresh = f"{behind}/{_ITERATOR}"
                tf.train.Checkpoint(iterator=self._iterator).write(fresh)
                _read(self._iterator, str(folder / _ITERATOR))
                _read(iter(self._data), fresh)
            return
        position = json.loads((folder / _POSITION).read_text(encoding="utf-8"))
        rng.restore(rng.from_json(position))
        self._begun = rng.capture()
        for _ in range(batches):
            next(self._iterator)

    def _state(self) -> dict[str, bytes]:
        """Return the files of the iterator's state, or of what it takes to read the data again."""
        found = {} if self._again else self._written()
        if not found:
            assert self._begun is not None
            found[_POSITION] = json.dumps(rng.to_json(self._begun)).encode()
        return found

    def _try(self) -> None:
        """Find out whether the pipeline can tell its state."""
        self._again = not self._written()

    def _written(self) -> dict[str, bytes]:
        """Return the files of the iterator's state; none where it cannot tell that."""
        with tempfile.TemporaryDirectory(prefix="rung-data-") as folder:
            try:
                tf.train.Checkpoint(iterator=self._iterator).write(f"{folder}/{_ITERATOR}")
            except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
                message = str(error.message)
                self._name(message.partition("}} ")[2].partition(" [Op")[0] or message)
                return {}
            return {file.name: file.read_bytes() for file in Path(folder).iterdir()}

    def _name(self, reason: str) -> None:
        """Say, once, what cannot be exact."""
        if not self._named:
            self._named = True
            _log.warning(
                "the tf.data pipeline cannot tell its position; a run that goes on reads it again "
                "up to there. That takes time, and is exact only if it is in a fixed order, has "
                "no tf.random.* operators (use tf.random.stateless_*), and nothing besides it "
                "draws from Python's and NumPy's generators",
                reason=reason,
            )


def _read(iterator: Any, prefix: str) -> None:
    tf.train.Checkpoint(iterator=iterator).read(prefix).assert_consumed()


def _repeats_a_shuffle(data: Any, *, repeated: bool = False) -> bool:
    """Return whether a data set has a shuffle that starts over within an epoch."""
    if repeated and isinstance(data, _SHUFFLES):
        return True
    repeated = repeated or isinstance(data, _REPEATS)
    return any(_repeats_a_shuffle(each, repeated=repeated) for each in data._inputs())


def _draws_late(data: Any, *, late: bool = False) -> bool:
    """Return whether a shuffle that draws for each epoch may draw only when it is read.

    TensorFlow opens what a shuffle reads late, and some of what joins several data sets.
    """
    if late and isinstance(data, _ShuffleDataset) and data._reshuffle_each_iteration:
        return True
    parts = data._inputs()
    joins = len(parts) > 1 and not isinstance(data, _ZipDataset)
    late = late or isinstance(data, _SHUFFLES) or joins
    return any(_draws_late(each, late=late) for each in parts)
