"""The states of callbacks as a file of a checkpoint: what is kept, left alone, refused."""

import collections
import dataclasses
import datetime as dt
import enum
import functools
import itertools
import json
import random
import threading
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rung.training.errors import NotResumable
from rung.training.states.callback_states import FILE, CallbackStates, named


class Colour(enum.Enum):
    """A value of a type of its own."""

    RED = 1
    BLUE = 2


class Window:
    """An object with plain attributes."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self) -> None:
        """Add a value."""
        self.values.append(1.0)


@dataclasses.dataclass
class Outcome:
    """A record."""

    step: int
    values: list[float]


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    """A record without a dict, which has another one."""

    at: dt.timedelta
    outcome: Outcome


class Callback:
    """A callback with a state of every kind."""

    def __init__(self) -> None:
        self.count = 0
        self.nothing: Any = None
        self.best = float("inf")
        self.scores: dict[Any, Any] = {}
        self.last: collections.deque[int] = collections.deque(maxlen=2)
        self.kinds: collections.defaultdict[str, int] = collections.defaultdict(int)
        self.found: set[int] = set()
        self.colour = Colour.RED
        self.window = Window()
        self.weights: list[Any] = []
        self.tensor = torch.zeros(2, dtype=torch.bfloat16)
        self.layer = torch.nn.Linear(1, 1)
        self.python = random.Random(1)  # noqa: S311 - a test's own
        self.numpy = np.random.default_rng(1)
        self.torch = torch.Generator().manual_seed(1)
        self.path = Path("a")
        self.lock = threading.Lock()
        self.function = len

    def change(self) -> None:
        """Change all of it."""
        self.count, self.nothing, self.best = 3, "something", 0.5
        self.scores[1, "a"] = [np.float32(0.25), None]
        self.last.extend([1, 2, 3])
        self.kinds["x"] += 1
        self.found |= {3, 1}
        self.colour = Colour.BLUE
        self.window.values.append(2.5)
        self.weights = [np.ones((2, 2), "float32"), torch.ones(3)]
        self.tensor = self.tensor + 1.5
        with torch.no_grad():
            self.layer.weight.fill_(7)
        self.python.random(), self.numpy.random(), torch.rand(1, generator=self.torch)
        self.path = Path("b")

    def told(self) -> list[Any]:
        """Return what it is."""
        draws = (
            self.python.random(),
            self.numpy.random(),
            float(torch.rand(1, generator=self.torch)),
        )
        return [
            self.count, self.nothing, self.best, self.scores, self.last, self.last.maxlen,
            self.kinds, type(self.kinds), self.found, self.colour, self.window.values,
            [each.tolist() for each in self.weights], [type(each) for each in self.weights],
            self.tensor.tolist(), self.tensor.dtype, self.layer.weight.tolist(), self.path, draws,
        ]  # fmt: skip


def states_of(callback: Any, *foreign: Any) -> CallbackStates:
    """Return the states of one callback."""
    return CallbackStates(named([callback]), lambda: foreign)


def test_every_kind_of_state_is_kept(tmp_path: Path) -> None:
    """And lies in the objects that were there, where these can have it."""
    before, after = Callback(), Callback()
    kept, read = states_of(before), states_of(after)
    kept.demand_complete()
    before.change()
    kept.write(tmp_path / FILE)
    window, scores, lock = after.window, after.scores, after.lock
    read.read(tmp_path / FILE)
    assert (after.window, after.scores, after.lock) == (window, scores, lock)
    assert after.told() == before.told()


def test_what_is_as_the_script_made_it_is_that_of_the_script_at_hand(tmp_path: Path) -> None:
    """A setting is not that of the checkpoint, and what hooks have changed is taken back."""
    before, after = (
        SimpleNamespace(path="/one", flag=False),
        SimpleNamespace(path="/two", flag=False),
    )
    kept, read = states_of(before), states_of(after)
    before.flag = True
    before.flag = False
    kept.write(tmp_path / FILE)
    assert b"/one" not in (tmp_path / FILE).read_bytes()
    after.flag = True
    read.read(tmp_path / FILE)
    assert after == SimpleNamespace(path="/two", flag=False)


def test_what_belongs_to_the_loop_is_no_state(tmp_path: Path) -> None:
    """Nor are views of its weights: a run that resumes has its own."""
    model = torch.nn.Linear(2, 2)
    callback = SimpleNamespace(model=model, views=[each.data for each in model.parameters()])
    kept = states_of(callback, model, *model.parameters())
    with torch.no_grad():
        model.weight.fill_(1)
    kept.write(tmp_path / FILE)
    views = callback.views
    kept.read(tmp_path / FILE)
    assert callback.views is views
    assert all(map(torch.equal, views, model.parameters()))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (itertools.count(), r"SimpleNamespace\.part is an iterator \(count\)"),
        ([iter([1])], r"an iterator \(list_iterator\)"),
        (SimpleNamespace(inner=(each for each in [1])), r"an iterator \(generator\)"),
        (torch.eye(2).to_sparse(), "a tensor that is not dense"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused(value: Any, said: str) -> None:
    """By its name, with what to write."""
    with pytest.raises(NotResumable, match=said) as refused:
        states_of(SimpleNamespace(part=value)).demand_complete()
    assert "give it state_dict() and load_state_dict(state)" in str(refused.value)


def test_what_has_the_two_methods_tells_its_state(tmp_path: Path) -> None:
    """Whatever attributes it has."""

    class Telling:
        def __init__(self) -> None:
            self.places = itertools.count()
            self.at = 0

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at = state["at"]

    before, after = Telling(), Telling()
    kept, read = states_of(before), states_of(after)
    kept.demand_complete()
    before.at = 4
    kept.write(tmp_path / FILE)
    read.read(tmp_path / FILE)
    assert after.at == 4


def test_methods_of_a_frameworks_own_class_tell_nothing(tmp_path: Path) -> None:
    """A callback that does not override them is kept by its attributes."""

    class Inheriting:
        def __init__(self) -> None:
            self.at = 0

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    before, after = Inheriting(), Inheriting()
    kept, read = (
        CallbackStates(named([each]), lambda: (), silent=True) for each in (before, after)
    )
    before.at = 4
    kept.write(tmp_path / FILE)
    read.read(tmp_path / FILE)
    assert after.at == 4


def test_an_object_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Its state has nowhere to go."""
    before, after = SimpleNamespace(part=None), SimpleNamespace(part=None)
    kept, read = states_of(before), states_of(after)
    before.part = Window()
    kept.write(tmp_path / FILE)
    with pytest.raises(NotResumable, match=r"SimpleNamespace\.part: .* make it before the first"):
        read.read(tmp_path / FILE)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Window(), "a Window that was made in training"),
        (np.random.default_rng(1), "a generator of random numbers that was made in training"),
        (torch.nn.Linear(1, 1), "a thing with a state_dict that was made in training"),
        ([Outcome(1, []), {"deep": Window()}], "a Window that was made in training"),
    ],
)
def test_an_object_that_training_makes_is_refused_at_the_checkpoint(
    tmp_path: Path, made: Any, said: str
) -> None:
    """A run that resumes would not have it, so no checkpoint is made that needs it."""
    callback = SimpleNamespace(part=None, window=Window())
    kept = states_of(callback)
    callback.early = Window()  # where training begins, as in each run
    kept.demand_complete()
    callback.window.values.append(0.5)
    kept.write(tmp_path / FILE)
    callback.part = made
    with pytest.raises(NotResumable, match=rf"would lose SimpleNamespace\.part: it holds {said}"):
        kept.write(tmp_path / FILE)


def test_records_that_training_makes_are_made_again(tmp_path: Path) -> None:
    """Of data classes, with values of Python's own types."""
    before, after = (SimpleNamespace(last=None, seen=[], values={}) for _ in range(2))
    kept, read = states_of(before), states_of(after)
    kept.demand_complete()
    before.last = Outcome(3, [0.5])
    before.seen = [Fixed(dt.timedelta(1, 2, 3), Outcome(step, [])) for step in range(2)]
    before.values = {
        "complex": 1 - 2j,
        "range": range(1, 9, 2),
        "bytes": bytearray(b"ab"),
        "moment": dt.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        "day": dt.date(2020, 1, 2),
        "time": dt.time(1, 2, 3),
        "decimal": Decimal("1.10"),
        "fraction": Fraction(1, 3),
        "id": uuid.UUID(int=5),
    }
    kept.write(tmp_path / FILE)
    read.read(tmp_path / FILE)
    assert after == before
    assert repr(after) == repr(before)


def test_data_are_no_state_and_a_state_does_not_become_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What has many values at the beginning is left out; what grows beyond that is refused."""
    monkeypatch.setattr("rung.training.states.state_tree._VALUES_MAX", 3)
    callback = SimpleNamespace(data=[(1,)] * 4, found=[(1,)], losses=[0.5] * 9)
    kept = states_of(callback)
    kept.demand_complete()
    kept.write(tmp_path / FILE)
    callback.found = [(1,)] * 4
    with pytest.raises(NotResumable, match=r"SimpleNamespace\.found holds too many values"):
        kept.write(tmp_path / FILE)


def functions(loop: object) -> tuple[Any, Callable[[], list[Any]]]:
    """Return a callback of functions, and what returns all that they have counted."""
    count = 0
    losses: list[float] = []
    later = collections.Counter[str]()
    first: int | None
    window, kinds, scale = Window(), {7}, [1.0]

    def enclosing() -> None:
        nonlocal count, first
        assert loop
        count += 1
        first = count
        losses.append(count / 2)
        nested()

    def nested() -> None:
        later[f"step {count}"] += 1

    def given(kinds: set[int], *, scale: list[float]) -> None:
        kinds.add(count)
        scale[0] *= 2

    callback = SimpleNamespace(
        enclosing=enclosing,
        method=window.add,
        partial=functools.partial(given, kinds, scale=scale),
        library=json.dumps,
    )
    return callback, lambda: [count, losses, later, first, window.values, kinds, scale]


def test_what_functions_refer_to_is_kept(tmp_path: Path) -> None:
    """Variables that they enclose, also such as are not assigned yet; objects; arguments."""
    loop = object()
    (before, kept), (after, found) = functions(loop), functions(loop)
    states, read = states_of(before, loop), states_of(after, loop)
    states.demand_complete()
    for _ in range(2):
        before.enclosing()
        before.method()
        before.partial()
    states.write(tmp_path / FILE)
    read.read(tmp_path / FILE)
    assert (
        found() == kept() == [2, [0.5, 1.0], {"step 1": 1, "step 2": 1}, 2, [1, 1], {7, 1, 2}, [4]]
    )
    for each in (before, after):
        each.enclosing()
    assert found() == kept()


def test_arrays_among_the_arguments_of_a_partial_are_filled(tmp_path: Path) -> None:
    """They cannot be replaced; of another shape they are refused by name."""

    def count(seen: np.ndarray, means: torch.Tensor) -> None:
        seen += 1
        means.mul_(2)

    def callback(shape: int) -> SimpleNamespace:
        arguments = np.zeros(shape), torch.ones(2, 2)
        return SimpleNamespace(each=functools.partial(count, *arguments))

    before, after, other = callback(3), callback(3), callback(4)
    states, read, refused = states_of(before), states_of(after), states_of(other)
    before.each()
    states.write(tmp_path / FILE)
    seen, means = after.each.args
    read.read(tmp_path / FILE)
    assert (after.each.args[0] is seen, seen.tolist()) == (True, [1, 1, 1])
    assert (after.each.args[1] is means, means.tolist()) == (True, [[2, 2], [2, 2]])
    with pytest.raises(NotResumable, match=r"cannot set each\.args\[0\]"):
        refused.read(tmp_path / FILE)


def test_what_no_function_refers_to_any_more_is_refused(tmp_path: Path) -> None:
    """The script is another one, which would train another thing."""
    before, _ = functions(loop := object())
    states = states_of(before, loop)
    before.enclosing()
    states.write(tmp_path / FILE)
    with pytest.raises(
        NotResumable, match=r"the checkpoint has SimpleNamespace\.enclosing\.count"
    ):
        states_of(SimpleNamespace(enclosing=len)).read(tmp_path / FILE)


def test_an_iterator_that_a_function_encloses_is_refused() -> None:
    """By its name."""
    numbers = itertools.count()
    said = r"SimpleNamespace\.draw\.numbers is an iterator"
    with pytest.raises(NotResumable, match=said):
        states_of(SimpleNamespace(draw=lambda: next(numbers))).demand_complete()


def test_callbacks_of_one_class_have_numbers() -> None:
    """In the order in which they are."""
    first, second, other = Window(), Window(), Callback()
    assert named([first, other, second]) == {
        "Window": first,
        "Callback": other,
        "Window-2": second,
    }
