"""Validations within an epoch, by the settings of Lightning's trainer.

Lightning asks these settings behind each batch; where a validation is due that they do not bring,
they are others for that batch.
"""

from typing import Any, Final


class EpochValidations:
    """Says which batches of a trainer a validation follows, and changes that."""

    def __init__(self, trainer: Any) -> None:
        """Take what the script has set.

        Args:
            trainer: before it fits.
        """
        self._trainer: Final = trainer
        self._own: tuple[Any, Any] | None = None

    def follows(self, batch_idx: int) -> bool:
        """Return whether a validation follows a batch that is not its epoch's last."""
        trainer = self._trainer
        every, interval = trainer.check_val_every_n_epoch, trainer.val_check_batch
        if not trainer.enable_validation or interval in {None, float("inf")}:
            return False
        if every is None:
            return bool((trainer.fit_loop.total_batch_idx + 1) % interval == 0)
        if (trainer.current_epoch + 1) % every:
            return False
        return bool((batch_idx + 1) % interval == 0)

    def demand(self, batch_idx: int) -> None:
        """Have a validation follow a batch."""
        trainer = self._trainer
        if not self.follows(batch_idx):
            self._own = trainer.check_val_every_n_epoch, trainer.val_check_batch
            trainer.check_val_every_n_epoch, trainer.val_check_batch = 1, batch_idx + 1

    def give_back(self) -> None:
        """Leave the settings as the script made them."""
        trainer = self._trainer
        if self._own is not None:
            trainer.check_val_every_n_epoch, trainer.val_check_batch = self._own
            self._own = None
