"""Generators of a script's own are kept, or the log names them."""

import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.framework_trials import needs

pytestmark = [needs("lightning"), pytest.mark.e2e]


class Data:
    """Draws."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


def kept(data: Data) -> Any:
    """Return what keeps its generators."""
    from rung.lightning.own_generators import OwnGenerators  # noqa: PLC0415 - may not be installed

    return OwnGenerators(lambda: {"Data": data}, list, without=frozenset())


@pytest.mark.parametrize(
    ("generator", "in_workers"),
    [(random.SystemRandom(), False), (random.Random(1), True)],  # noqa: S311 - reproducible
)
def test_what_cannot_be_kept_is_named_in_the_log(generator: Any, *, in_workers: bool) -> None:
    """Once: a generator of the operating system, and one in whose place workers draw."""
    data = Data(generator)
    with capture_logs() as said:
        own = kept(data)
        own.begin({"Data": data} if in_workers else {})
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


def test_one_of_another_kind_is_refused() -> None:
    """By its name."""
    from rung.lightning import NotResumable  # noqa: PLC0415 - as above

    numpy = pytest.importorskip("numpy")
    states = kept(Data(numpy.random.default_rng(1))).states()
    with pytest.raises(NotResumable, match=r"Data\.generator is a generator of another kind"):
        kept(Data(random.Random(1))).set(states)  # noqa: S311 - reproducible
