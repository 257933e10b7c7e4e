"""Generators of a script's own are kept, or the log names them."""

import random
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from rung.torch.checkpoint.own_generators import OwnGenerators
from rung.training.errors import NotResumable


class Data:
    """Draws."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


def kept(data: Data) -> OwnGenerators:
    """Return what keeps its generators."""
    return OwnGenerators(lambda: {"Data": data}, list, without=frozenset())


@pytest.mark.parametrize(
    ("generator", "ahead"),
    [(random.SystemRandom(), False), (random.Random(1), True)],  # noqa: S311 - reproducible
)
def test_what_cannot_be_kept_is_named_in_the_log(generator: Any, *, ahead: bool) -> None:
    """Once: a generator of the operating system, and one in whose place workers draw."""
    data = Data(generator)
    with capture_logs() as said:
        own = kept(data)
        own.begin({"Data": data} if ahead else {})
        own.states()
        own.states()
    assert [each["event"].partition(" is ")[0] for each in said] == ["Data.generator"]


def test_one_that_training_makes_is_named_in_the_log() -> None:
    """A run that resumes may not have it."""
    data = Data(None)
    own = kept(data)
    own.begin({})
    data.generator = random.Random(1)  # noqa: S311 - reproducible
    with capture_logs() as said:
        own.states()
    assert "Data.generator is a generator of its own" in said[0]["event"]


def test_states_are_set_again() -> None:
    """By their places; a place that is not there any more is left out."""
    data = Data({"first": random.Random(1), "second": np.random.default_rng(2)})  # noqa: S311 - reproducible
    own = kept(data)
    own.begin({})
    states = own.states()
    drawn = data.generator["first"].random(), data.generator["second"].random()
    del states["Data.generator['first']"]
    own.set(states)
    assert data.generator["second"].random() == drawn[1]
    assert data.generator["first"].random() != drawn[0]


def test_one_of_another_kind_is_refused() -> None:
    """By its name: where a run resumes, and at a checkpoint where training has exchanged it."""
    states = kept(Data(np.random.default_rng(1))).states()
    with pytest.raises(NotResumable, match=r"Data\.generator is a generator of another kind"):
        kept(Data(random.Random(1))).set(states)  # noqa: S311 - reproducible
    data = Data(np.random.default_rng(1))
    own = kept(data)
    own.begin({})
    own.states()
    data.generator = np.random.Generator(np.random.MT19937(1))
    said = r"Data\.generator is a Generator of MT19937 now, and was a Generator of PCG64"
    with pytest.raises(NotResumable, match=said):
        own.states()
