"""Mixed precision: autocast, and scaling of gradients.

    use_amp           automatic: batches are computed under autocast, the loss is scaled, gradients
                      are unscaled before clipping, the scale is updated
    wrap_scaler       the trial does all this itself; the scaler is in checkpoints

bfloat16 has the range of float32 and needs no scaler. float16 has a smaller range: gradients are
scaled up, and where that overflows the optimizer's step is skipped and the scale lowered.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.optim import Optimizer

from rung.torch.determinism import log_unsaved_scaler
from rung.training.units import InvalidPlan


class Precision:
    """The precision of a context; by default full precision."""

    def __init__(self, device: torch.device, *, sharded: bool = False) -> None:
        self.device: Final = device
        self.scaler: Any = None
        """The scaler in checkpoints."""
        self._sharded = sharded
        self._dtype: torch.dtype | None = None
        self._automatic = False
        self._stepped = False

    def wrap(self, scaler: Any) -> None:
        """Put a scaler of the trial's own into checkpoints.

        Raises:
            InvalidPlan: `use_amp` was called before.
        """
        if self._dtype is not None:
            raise InvalidPlan("wrap_scaler: use_amp is on already; use one or the other")
        self.scaler = scaler

    def use(self, dtype: torch.dtype | None, scaler: Any = None) -> None:
        """Compute in a lower precision from now on.

        Args:
            dtype: None: float16 on a GPU, bfloat16 elsewhere.
            scaler: None: torch's, where the precision needs one.

        Raises:
            InvalidPlan: the precision is not possible here.
        """
        if self.scaler is not None:
            raise InvalidPlan("use_amp: a scaler is wrapped already; use one or the other")
        if dtype is None:
            dtype = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        if dtype not in {torch.float16, torch.bfloat16}:
            raise InvalidPlan(f"use_amp: dtype must be torch.float16 or torch.bfloat16: {dtype}")
        if dtype is torch.float16 and self._sharded:
            raise InvalidPlan(
                "use_amp: each rank of a sharded model would scale float16 gradients by itself;"
                " use dtype=torch.bfloat16, or distributed.strategy: ddp"
            )
        self._dtype = dtype
        if scaler is not None or dtype is torch.float16:
            self.scaler = scaler or torch.amp.GradScaler(self.device.type)
            self._automatic = True

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context with autocast to the chosen precision."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._dtype)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss, scaled if `use_amp` does so."""
        if not self._automatic:
            return loss
        found: torch.Tensor = self.scaler.scale(loss)
        return found

    def paused(self) -> AbstractContextManager[Any]:
        """Return a context without autocast, for gradients and the optimizer."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, enabled=False)

    def scaler_of(self, given: Any) -> Any:
        """Return the scaler for a step; None: none."""
        if self._automatic:
            return given or self.scaler
        if given is not None:
            log_unsaved_scaler(self.scaler, given)
        return given

    def step(self, optimizer: Optimizer, scaler: Any) -> bool:
        """Step an optimizer; return False if the scaler skipped the step.

        A fused optimizer is called in any case and skips the step by itself, where its `found_inf`
        is not 0; on a GPU this waits for the gradients, as the scaler does for other optimizers.
        """
        if scaler is None:
            optimizer.step()
            return True
        self._stepped = True
        skipped: list[Any] = []
        watch = optimizer.register_step_post_hook(
            lambda stepped, *_: skipped.append(getattr(stepped, "found_inf", None))
        )
        try:
            scaler.step(optimizer)
        finally:
            watch.remove()
        return bool(skipped) and not skipped[-1]

    def end_batch(self) -> None:
        """Update the scale after a batch with a step, if `use_amp` manages the scaler."""
        if self._automatic and self._stepped:
            self.scaler.update()
        self._stepped = False
