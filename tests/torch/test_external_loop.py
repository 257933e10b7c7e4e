"""What ranks of torch keep; what cannot be exact is in the log."""

from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

from rung import core
from rung.core import DistributedContext
from rung.torch.external_loop import gathered, tell
from support.ranked import on_agents, ranked
from support.trials.gpu import on_gpu


def test_tensors_come_by_way_of_the_cpu() -> None:
    """On the chief there may be no GPU of the sender's number, and no room on it."""

    def keep(ranks: DistributedContext) -> dict[str, Any]:
        return gathered(ranks, {"sums": {"loss": [on_gpu(float(ranks.rank))]}})

    chief: dict[str, Any] = ranked(on_agents(2), keep)[0]
    sums = [each["sums"]["loss"][0] for each in chief["ranks"]]
    assert [(type(each), float(each)) for each in sums] == [(torch.Tensor, 0), (torch.Tensor, 1)]


def test_a_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line of the experiment file that makes results equal; a processor is exact."""
    monkeypatch.chdir(tmp_path)
    with core.init() as run, structlog.testing.capture_logs() as logs:
        tell(run, torch.device("cpu"))
        assert logs == []
        tell(run, torch.device("cuda"))
    [told] = logs
    assert "reproducibility: {deterministic: true}" in told["event"]
