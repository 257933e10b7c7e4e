"""What of a trial does not show in what became of it; written down where an order asks for it."""

import os
from typing import Any

import structlog
import torch


class Notes:
    """Takes the place of a run's log, and of its sign of life, said once a second at most.

    An order that is `loose` has its script switch off what the experiment file asked torch for.
    """

    def __init__(self, run: Any, order: dict[str, Any]) -> None:
        self._wanted = order.get("notes", False)
        self._beats = 0
        self._log = structlog.testing.LogCapture()
        if self._wanted:
            vars(run.train)["heartbeat"] = self._beat
            structlog.configure(processors=[self._log])
        if order.get("loose"):
            torch.use_deterministic_algorithms(mode=False)

    def told(self) -> dict[str, Any]:
        """Return what to add to what became of the trial."""
        if not self._wanted:
            return {}
        return {
            "beats": self._beats,
            "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            "log": [each["event"] for each in self._log.entries],
            "warnings": [
                each["event"] for each in self._log.entries if each["log_level"] == "warning"
            ],
        }

    def _beat(self) -> None:
        self._beats += 1
