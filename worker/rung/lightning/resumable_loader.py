"""The training data with a position that Lightning keeps in its checkpoints.

The loader is rebuilt as `rung.torch` does it: its order follows from the trial's seed and the
epoch alone, and its state is the position. An epoch's data are opened at its first batch, when
Lightning has said which epoch it is.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from rung.torch.data.training_data import TrainingData
from rung.training import ProgressTracker, batch_size
from rung.training.errors import NotResumable


class ResumableLoader:
    """A loader's batches; Lightning finds `state_dict` and `load_state_dict`, and keeps them."""

    def __init__(
        self,
        loader: Any,
        tracker: ProgressTracker,
        opens: Callable[[], None],
        arrive: Callable[[], None],
    ) -> None:
        """Take a DataLoader's place.

        Args:
            loader: it; its batches are those of all ranks together.
            tracker: of the run; has the time measured that the loop waits here.
            opens: is called before the data of an epoch are opened.
            arrive: is called before the first batch after that.
        """
        if not isinstance(loader, DataLoader):
            raise NotResumable(
                f"the training data given to Trainer.fit are a {type(loader).__name__}, whose "
                "position cannot be kept: give one torch DataLoader; for several data sets at "
                "once, one over a data set that holds them (torch.utils.data.StackDataset)"
            )
        run = tracker.run
        self._data = TrainingData(
            loader, run.seed, run.distributed, batch_size.wanted_by(run.hparams)
        )
        if self._data.batch_size is not None:
            batch_size.log(run, self._data.batch_size)
        if self._data.length is None:
            raise NotResumable(
                "the training data loader has no length: Lightning reads ahead in it, so its "
                "position is not that of the training; give a DataLoader over a data set with "
                "__len__"
            )
        self._length = self._data.length
        self._opens = opens
        self._arrive = arrive
        self._fetch = tracker.fetched
        self._state: dict[str, Any] | None = None
        self._fresh = True
        self._fetched = 0
        self._epoch = 0
        self.opened = False
        """Whether a batch was fetched."""
        self.batch_size = loader.batch_size
        self.sampler = self

    @property
    def parts(self) -> list[Any]:
        """The data set of the script, and the samplers of its loader."""
        return self._data.parts

    @property
    def share(self) -> float:
        """This rank's part of the last batch."""
        return self._data.share

    @property
    def records(self) -> int | None:
        """Records of the last batch of all ranks; None: count those of this one."""
        return self._data.records

    def set_epoch(self, epoch: int) -> None:
        """Take the number of the epoch that begins or goes on."""
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {"fetched": self._fetched, "data": self._data.state() if self.opened else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a position; the next epoch opened goes on from there."""
        self._state = state

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._fresh = True
        return self

    def __next__(self) -> Any:
        if self._fresh:
            self._open()
        if self._fetched == self._length:
            raise StopIteration
        batch = self._fetch(self._data.next)
        self._fetched += 1
        if self._fetched == self._length:
            self._data.finish()
        return batch

    def _open(self) -> None:
        state, self._state, self._fresh = self._state, None, False
        self.opened = True
        within = state is not None and 0 < state["fetched"] < self._length
        self._fetched = state["fetched"] if state is not None and within else 0
        data = state["data"] if state is not None else None
        self._opens()
        self._data.start(self._epoch, data, self._fetched)
        self._arrive()
