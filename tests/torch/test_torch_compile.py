"""A compiled model has the checkpoints of the model itself; what compiling lacks is named."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from rung import torch as rt
from rung.core.ipc.protocol import Stored
from rung.torch import torch_compile
from support.agent_end import AgentEnd
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG

from .conftest import Start


class Wrapped(nn.Module):
    """Has the names that torch gives to a compiled model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def parts() -> list[nn.Module]:
    """Return two layers, the second with versioned buffers."""
    return [nn.Linear(2, 2), nn.BatchNorm1d(2)]


def test_names_are_those_of_the_model_itself() -> None:
    """Of parameters and of the modules whose versions are noted, wherever the wrapper is."""
    layer, norm = parts()
    model = Wrapped(nn.Sequential(layer, Wrapped(norm)))
    plain = nn.Sequential(layer, norm)
    found = torch_compile.with_plain_names(model.state_dict())
    assert list(found) == list(plain.state_dict())
    versions = vars(plain.state_dict())["_metadata"]
    assert {name: vars(found)["_metadata"][name] for name in versions} == versions
    plain.load_state_dict(found)
    assert torch_compile.original(model) is model._orig_mod
    assert torch_compile.original(plain) is plain


def test_a_state_finds_the_names_of_a_compiled_part() -> None:
    """And one that has them already is as it was; what is no model keeps its own."""
    model = nn.Sequential(nn.Linear(2, 2), Wrapped(nn.BatchNorm1d(2)))
    plain = nn.Sequential(*parts())
    model.load_state_dict(torch_compile.with_own_names(model, plain.state_dict()))
    assert torch.equal(model.state_dict()["0.weight"], plain.state_dict()["0.weight"])
    state = {"_orig_mod": 1}
    assert torch_compile.with_own_names(object(), state) is state


def test_a_state_of_a_compiled_model_fits_too() -> None:
    """One that was stored with a compiled model's names, on a model compiled elsewhere."""
    stored = Wrapped(nn.Sequential(*parts())).state_dict()
    plain = nn.Sequential(*parts())
    plain.load_state_dict(torch_compile.with_own_names(plain, stored))
    model = nn.Sequential(nn.Linear(2, 2), Wrapped(nn.BatchNorm1d(2)))
    model.load_state_dict(torch_compile.with_own_names(model, stored))
    for found in (plain, model):
        assert torch.equal(found.state_dict()["0.weight"], stored["_orig_mod.0.weight"])


class Compiled(PlainTrial):
    """Compiled after it was wrapped, before, in a part, or not at all."""

    def __init__(self, context: rt.TrialContext, how: str) -> None:
        self.context = context
        model: Any = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5))
        if how == "part":
            model[0] = torch.compile(model[0], backend="eager")
        if how == "before":
            model = torch.compile(model, backend="eager")
        self.model = context.wrap_model(model)
        if how == "after":
            self.model = context.compile(self.model, backend="eager")
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("first", ["after", "before", "part", "plain"])
def test_a_checkpoint_fits_whether_compiled_or_not(start: Start, first: str) -> None:
    """Begun compiled and gone on plain, or the other way: the run that nobody interrupted."""
    last = "after" if first == "plain" else "plain"
    agent, context = start(config=CONFIG, length=9)
    whole = trained(agent, context, last)
    agent, context = start(config=CONFIG, length=4)
    trained(agent, context, first)
    [stored] = [message.checkpoint_id for message in agent.of(Stored)]
    objects = Path(agent.path).parent / "objects"
    [file] = objects.rglob("model.pt")
    assert list(torch.load(file, weights_only=True)) == ["0.weight", "0.bias"]
    agent.spec = msgspec.structs.replace(agent.spec, run=2, length=9, restore=[stored])
    with rt.init() as again:
        assert trained(agent, again, last) == whole


def trained(agent: AgentEnd, context: rt.TrialContext, how: str) -> list[float]:
    """Train a run and return the weights that it ends with."""
    trial = Compiled(context, how)
    rt.Trainer(trial, context).fit()
    context.core.close()
    agent.wait_for_end(context.core.info.trial.run)
    return trial.weights()


PROGRAM = """
import torch
from torch._inductor import config
from rung.torch.torch_compile import NotCompiled, obstacles_named
config.cpp.cxx = (None, "/no/such/compiler")
try:
    with obstacles_named():
        torch.compile(torch.nn.Linear(3, 3))(torch.ones(2, 3)).sum().backward()
except NotCompiled as error:
    print(error)
"""


@pytest.mark.e2e
def test_a_machine_without_a_compiler_is_named() -> None:
    """With what to install, and that compiling changes no checkpoint."""
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert "torch.compile needs a C++ compiler" in said
    assert "install g++" in said


def test_other_errors_are_left_as_they_are() -> None:
    """Nothing that has nothing to do with compiling is touched."""
    with pytest.raises(ZeroDivisionError), torch_compile.obstacles_named():
        raise ZeroDivisionError
