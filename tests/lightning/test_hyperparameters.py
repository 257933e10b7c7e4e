"""Hyperparameters of Lightning modules that no checkpoint can hold are left out, and named."""

import argparse
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import structlog

from rung.torch.checkpoint.tensor_file import plain
from support.framework_trials import needs

pytestmark = [needs("lightning"), pytest.mark.e2e]


class Kind(Enum):
    """A choice."""

    A = "a"


def test_what_cannot_be_stored_is_left_out_and_named() -> None:
    """A Namespace, a path and a member of an enumeration; plain values stay."""
    from lightning import LightningModule  # noqa: PLC0415 - may not be installed

    from rung.lightning.hyperparameters import leave_out_objects  # noqa: PLC0415 - as above

    class Net(LightningModule):  # type: ignore[misc]  # Lightning may not be installed
        def __init__(self, args: Any, folder: Any, kind: Any, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()

    net = Net(argparse.Namespace(lr=0.1), Path("data"), Kind.A)
    checkpoint: dict[str, Any] = {"hyper_parameters": dict(net.hparams), "epoch": 1}
    with structlog.testing.capture_logs() as logs:
        leave_out_objects(checkpoint)
        leave_out_objects(checkpoint)
    assert plain(checkpoint, "checkpoint") == {"hyper_parameters": {"width": 3}, "epoch": 1}
    [told] = [log["event"] for log in logs]
    assert "args, folder, kind cannot be read again" in told
    assert "load_from_checkpoint(path, args=…, folder=…, kind=…)" in told
