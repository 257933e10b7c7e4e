"""What cannot be resumed exactly is named, with what would make it so."""

import random
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from torch.utils.data import IterableDataset

from rung import torch as rt
from rung.torch import exactness
from training.plain import PlainTrial
from training.story import CONFIG

from .conftest import Start

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """Put torch's switch back."""
    yield
    torch.use_deterministic_algorithms(mode=False)


class Stream(IterableDataset[int]):
    """A stream that draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = random.Random(3)  # noqa: S311 - that is the point

    def __iter__(self) -> Any:
        return iter([self.rng.random()])


class KeptStream(Stream):
    """The same, kept."""

    def state_dict(self) -> dict[str, Any]:
        """Keep something."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""


class Drawing:
    """A trial with a generator that nobody keeps."""

    def __init__(self) -> None:
        self.noise = np.random.default_rng(3)


def test_a_plain_trial_has_no_caveats() -> None:
    """What is exact is not talked about."""
    assert exactness.caveats(object(), CPU, [[1, 2]]) == []
    assert exactness.caveats(object(), CPU, [KeptStream()]) == []


def test_generators_of_ones_own_are_named() -> None:
    """Each by its place, and with the two methods that would keep it."""
    stream, own, drawn = exactness.caveats(Drawing(), CPU, [Stream()])
    assert "data set Stream is an IterableDataset without state_dict" in stream
    assert own.startswith("Drawing.noise is a generator of its own")
    assert drawn.startswith("Stream.rng is a generator of its own")


def test_a_gpu_is_named_unless_it_is_deterministic() -> None:
    """With the line of the experiment file that makes results equal."""
    [text] = exactness.caveats(object(), GPU, [])
    assert "reproducibility: {deterministic: true}" in text
    exactness.demand()
    assert exactness.caveats(object(), GPU, []) == []


def test_an_operation_that_is_not_deterministic_is_named(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment file forbids it, and the run fails with its name and the two ways out."""
    refusal = "scatter_add_cuda_kernel does not have a deterministic implementation, but you set …"

    class Scattering(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            assert torch.are_deterministic_algorithms_enabled()
            raise RuntimeError(refusal)

    config = CONFIG | {"reproducibility": {"deterministic": True}}
    _, context = start(config=config, length=2)
    with pytest.raises(rt.NotDeterministic, match=r"scatter_add_cuda_kernel .* that line out"):
        rt.Trainer(Scattering(context), context).fit()


def test_another_machine_is_named() -> None:
    """What changed is told; what did not is not."""
    same = exactness.machine()
    with structlog.testing.capture_logs() as logs:
        exactness.tell_differences(None)
        exactness.tell_differences(same)
    assert logs == []
    with structlog.testing.capture_logs() as logs:
        exactness.tell_differences(same | {"threads": "96", "GPU": "H200"})
    [told] = logs
    assert "threads 96 then, 1 now" in told["event"]
    assert "GPU H200 then, none now" in told["event"]
    assert "torch" not in told["event"]


def test_a_scaler_that_is_not_kept_is_named_once() -> None:
    """One that is wrapped is fine."""
    scaler = object()
    with structlog.testing.capture_logs() as logs:
        exactness.note_scaler(scaler, scaler)
        assert logs == []
        exactness.note_scaler(None, scaler)
        exactness.note_scaler(None, scaler)
    [told] = logs
    assert "context.wrap_scaler" in told["event"]


def test_two_things_of_one_name_cannot_be_kept(start: Start) -> None:
    """The second would overwrite the first in every checkpoint."""
    _, context = start(config=CONFIG)
    kept = context.keep("average", torch.nn.Linear(1, 1))
    assert context.keep("average", kept) is kept
    with pytest.raises(ValueError, match="average"):
        context.keep("average", torch.nn.Linear(1, 1))
