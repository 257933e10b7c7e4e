"""When a model on several ranks communicates: where gradients are computed, whatever its mode."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from rung.torch.data_parallel import Parallel
from rung.torch.ddp_model import Replica
from rung.training.units import InvalidPlan

Forwards = list[tuple[Any, ...]]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """Have a process group of this process alone."""
    meeting = f"file://{tmp_path / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def replica(process_group: None) -> Replica:
    """Return a model in a process group."""
    return Replica(nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)))


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Forwards:
    """Return the calls of torch's own forward, which communicates."""
    found: Forwards = []
    forward: Callable[..., Any] = DistributedDataParallel.forward

    def noted(self: DistributedDataParallel, *inputs: Any) -> Any:
        found.append(inputs)
        return forward(self, *inputs)

    monkeypatch.setattr(DistributedDataParallel, "forward", noted)
    return found


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("context", "communicates"),
    [(torch.enable_grad, True), (torch.no_grad, False), (torch.inference_mode, False)],
)
def test_a_model_communicates_where_gradients_are_enabled(
    replica: Replica, forwards: Forwards, context: Any, *, training: bool, communicates: bool
) -> None:
    """Fine-tuning in evaluation mode averages gradients, too."""
    replica.module.train(training)
    with context():
        replica(torch.ones(3, 1))
    assert bool(forwards) == communicates


def test_in_a_validation_no_gradients_are_averaged(replica: Replica, forwards: Forwards) -> None:
    """Ranks have different numbers of batches there, so none may wait for the others."""
    replica.eval()
    replica.rung_validates = True
    output = replica(torch.ones(3, 1, requires_grad=True))
    assert output.requires_grad
    assert not forwards


def test_what_is_trained_may_change(replica: Replica) -> None:
    """A model that is wholly frozen for a while communicates nothing, and goes on afterwards."""
    weights = list(replica.module.parameters())
    for trained in (weights[:1], [], weights[1:]):
        for weight in weights:
            weight.grad = None
            weight.requires_grad_(any(weight is each for each in trained))
        output = replica(torch.ones(3, 1, requires_grad=not trained)).sum()
        output.backward()
        assert [weight.grad is not None for weight in weights] == [
            any(weight is each for each in trained) for weight in weights
        ]


class Scored(nn.Module):
    """Has its loss as a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return self.loss(batch)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Compute, too."""
        return torch.as_tensor(self.layer(batch).square().mean())


def _by_method(model: Any) -> None:
    model.loss(torch.ones(3, 1)).backward()


def _by_layer(model: Any) -> None:
    model.layer(torch.ones(3, 1)).sum().backward()


@pytest.mark.parametrize("compute", [_by_method, _by_layer])
def test_gradients_that_are_not_averaged_are_refused(process_group: None, compute: Any) -> None:
    """Those of a method of the model, or of a layer, are of one rank alone."""
    parallel: Any = Parallel.__new__(Parallel)
    replica = Replica(Scored())
    vars(parallel).update(_replicas=[replica], _stepped=WeakKeyDictionary())
    optimizer = torch.optim.SGD(replica.parameters(), 0.1)
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    for _ in range(2):
        replica(torch.ones(3, 1)).backward()
        parallel.demand_averaged(other)
        parallel.demand_averaged(optimizer)
        optimizer.zero_grad()
    parallel.demand_averaged(optimizer)  # there is nothing to step with
    compute(replica)
    with pytest.raises(InvalidPlan, match="gradients of Scored are not averaged"):
        parallel.demand_averaged(optimizer)


def test_optimizers_of_one_model_step_after_one_call(process_group: None) -> None:
    """Each has averaged gradients, whichever of them steps first."""
    parallel: Any = Parallel.__new__(Parallel)
    replica = Replica(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)))
    vars(parallel).update(_replicas=[replica], _stepped=WeakKeyDictionary())
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in replica.module]
    for _ in range(2):
        replica(torch.ones(3, 1)).sum().backward()
        for optimizer in optimizers:
            parallel.demand_averaged(optimizer)
    replica.module[1](torch.ones(3, 2)).sum().backward()
    optimizers[0].zero_grad()
    parallel.demand_averaged(optimizers[0])  # this layer was not computed
    with pytest.raises(InvalidPlan, match="gradients of Sequential are not averaged"):
        parallel.demand_averaged(optimizers[1])


def test_a_model_that_was_wrapped_frozen_is_not_trained() -> None:
    """Its gradients would be those of one rank."""
    parallel: Any = Parallel.__new__(Parallel)
    model = nn.Linear(1, 1).requires_grad_(requires_grad=False)
    vars(parallel).update(ranks=SimpleNamespace(size=2), _frozen=[])
    assert parallel.wrap(model) is model
    parallel.refuse_unfrozen()
    model.requires_grad_()
    with pytest.raises(InvalidPlan, match="Linear was frozen when it was wrapped"):
        parallel.refuse_unfrozen()
