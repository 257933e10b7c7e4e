"""What cannot be resumed exactly is named, with what would make it so."""

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from torch.utils.data import IterableDataset, RandomSampler

from rung import torch as rt
from rung.torch import determinism
from rung.training.determinism import log_differences
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from .conftest import Start

CPU, GPU = (determinism.Circumstances(torch.device(name)) for name in ("cpu", "cuda"))


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """Put torch's switch back."""
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.backends.cudnn.benchmark = False


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
    assert determinism.caveats(object(), CPU, [[1, 2]]) == []
    assert determinism.caveats(object(), CPU, [KeptStream()]) == []


def test_generators_of_ones_own_are_named() -> None:
    """Each by its place, and with the two methods that would keep it.

    Also within what a data set is made of; what the trainer seeds itself is not named.
    """
    stream, own, drawn = determinism.caveats(Drawing(), CPU, [Stream()])
    assert "data set Stream is an IterableDataset without state_dict" in stream
    assert own.startswith("Drawing.noise is a generator of its own")
    assert drawn.startswith("Stream.rng is a generator of its own")


def test_generators_are_found_in_what_a_data_set_is_made_of() -> None:
    """In a transform of a list, say; but not those of samplers, which are seeded anew."""
    noise = SimpleNamespace(rng=torch.Generator())
    data = SimpleNamespace(transform=SimpleNamespace(transforms=[None, noise]), labels=[1, 2])
    [text] = determinism.caveats(object(), CPU, [data])
    assert text.startswith("SimpleNamespace.transform.transforms[1].rng is a generator")
    sampler = RandomSampler([1, 2], generator=torch.Generator())
    assert determinism.caveats(object(), CPU, [[1, 2], sampler]) == []


class Settings(dict[str, Any]):
    """Has its keys as attributes, and raises KeyError for all others."""

    __getattr__ = dict.__getitem__


class Slotted:
    """Has no `__dict__`, and raises what it likes."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_what_raises_on_any_attribute_is_no_obstacle() -> None:
    """A data set may hold such a thing: it is not asked for attributes that it has not."""
    data = SimpleNamespace(settings=Settings(rate=1), odd=Slotted(), rng=random.Random(3))  # noqa: S311 - that is the point
    [text] = determinism.caveats(object(), CPU, [data])
    assert text.startswith("SimpleNamespace.rng is a generator")
    assert not determinism.is_kept(Settings(state_dict=1))
    assert determinism.is_kept(SimpleNamespace(state_dict=dict, load_state_dict=dict))


def test_a_gpu_is_named_unless_it_is_deterministic() -> None:
    """With the line of the experiment file that makes results equal."""
    [text] = determinism.caveats(object(), GPU, [])
    assert "reproducibility: {deterministic: true}" in text
    determinism.demand()
    assert determinism.caveats(object(), GPU, []) == []


def test_what_a_script_switches_off_is_named() -> None:
    """Although the experiment file asks for it; and cuDNN's choice by speed."""
    determinism.demand()
    torch.backends.cudnn.benchmark = True
    [text] = determinism.caveats(object(), GPU._replace(demanded=True), [])
    assert "cudnn.benchmark is on" in text
    torch.use_deterministic_algorithms(mode=False)
    [text] = determinism.caveats(object(), CPU._replace(demanded=True), [])
    assert "switched torch.use_deterministic_algorithms off" in text


def test_several_gpus_are_named() -> None:
    """Their sums depend on how they are connected."""
    determinism.demand()
    [text] = determinism.caveats(object(), GPU._replace(demanded=True, ranks=2), [])
    assert "moved to other machines" in text


class Putting(PlainTrial):
    """Does what torch has no deterministic way for, on a processor either."""

    def put(self) -> torch.Tensor:
        """Write twice to the same place."""
        return torch.zeros(2).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


class PuttingInTraining(Putting):
    """While it trains."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit a line."""
        self.put()
        return super().train_batch(batch, epoch_idx, batch_idx)


class PuttingInValidation(Putting):
    """While it is validated."""

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return something."""
        return {"loss": self.put().sum()}


@pytest.mark.parametrize("kind", [PuttingInTraining, PuttingInValidation])
def test_an_operation_that_is_not_deterministic_is_named(
    start: Start, kind: type[Putting]
) -> None:
    """The experiment file forbids it, and the run fails with its name and the two ways out."""
    config = CONFIG | {"reproducibility": {"deterministic": True}}
    _, context = start(config=config, length=2)
    with pytest.raises(
        rt.NotDeterministic, match=r"^put_ is not deterministic .* remove that line"
    ):
        rt.Trainer(kind(context), context).fit()


def test_without_the_demand_it_is_as_ever(start: Start) -> None:
    """Nobody is refused anything."""
    agent, context = start(config=CONFIG, length=2)
    rt.Trainer(PuttingInTraining(context), context).fit()
    assert finish(agent, context)[-1] == "s2"


def test_a_setting_of_cublas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment has one with which it is not deterministic."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    determinism.demand()
    told = "Deterministic behavior was enabled, but … because it uses CuBLAS and you have CUDA …"
    with (
        pytest.raises(rt.NotDeterministic, match=r"CUBLAS_WORKSPACE_CONFIG=:0:0.* :4096:8"),
        determinism.operators_named(),
    ):
        raise RuntimeError(told)


def test_another_machine_is_named() -> None:
    """What changed is told; what did not is not."""
    same = determinism.machine()
    with structlog.testing.capture_logs() as logs:
        log_differences(None, determinism.machine())
        log_differences(same, determinism.machine())
    assert logs == []
    with structlog.testing.capture_logs() as logs:
        log_differences(same | {"threads": "96", "GPU": "H200"}, determinism.machine())
    [told] = logs
    assert "threads 96 then, 1 now" in told["event"]
    assert "GPU H200 then, none now" in told["event"]
    assert "torch" not in told["event"]


def test_a_scaler_that_is_not_kept_is_named_once() -> None:
    """One that is wrapped is fine."""
    scaler = object()
    with structlog.testing.capture_logs() as logs:
        determinism.log_unsaved_scaler(scaler, scaler)
        assert logs == []
        determinism.log_unsaved_scaler(None, scaler)
        determinism.log_unsaved_scaler(None, scaler)
    [told] = logs
    assert "context.wrap_scaler" in told["event"]


def test_two_things_of_one_name_cannot_be_kept(start: Start) -> None:
    """The second would overwrite the first in every checkpoint."""
    _, context = start(config=CONFIG)
    kept = context.keep("average", torch.nn.Linear(1, 1))
    assert context.keep("average", kept) is kept
    with pytest.raises(ValueError, match="average"):
        context.keep("average", torch.nn.Linear(1, 1))
