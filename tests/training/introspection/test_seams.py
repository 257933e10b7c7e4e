"""Private interfaces as data: each kind is there in a framework of our own, or missed."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rung.training.introspection.seams import AddOn, Kind, Seam, SeamMissing, exact
from support.seams import assert_refused_without_each


class Loop:
    """What a framework has."""

    def __init__(self) -> None:
        self._results = self._state = 0

    def _advance(self, batch: int, *, last: bool = False) -> int:
        total = batch
        total += last
        return total

    @property
    def _restarting(self) -> int:
        return self._state


MODULE = "framework_of_a_test"
SEAMS = (
    Seam(f"{MODULE}:Loop._advance", Kind.ATTRIBUTE, "a batch is lost"),
    Seam(f"{MODULE}:Loop._advance", Kind.CALL, "a batch is lost", ("batch", "last")),
    Seam(f"{MODULE}:Loop._advance", Kind.LOCALS, "a batch is lost", ("total",)),
    Seam(f"{MODULE}:Loop.__init__", Kind.NAMES, "a sum is lost", ("_results",)),
    Seam(f"{MODULE}:Loop._restarting", Kind.NAMES, "a sum is lost", ("_state",)),
    Seam(f"{MODULE}:Message", Kind.FIELDS, "a process is lost", ("size",)),
)


def add_on(*seams: Seam) -> AddOn:
    """Return one of the framework."""
    return AddOn(
        framework="Framework",
        module=MODULE,
        package="framework",
        lowest="3.8",
        newest="3.15",
        without="a run begins its epoch again",
        seams=seams,
    )


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A framework with all of them."""
    module: Any = ModuleType(MODULE)
    module.__version__ = "3.15.2"
    module.Loop = Loop
    module.Message = SimpleNamespace(DESCRIPTOR=SimpleNamespace(fields_by_name={"size": 1}))
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.kind.value)
def test_each_kind_is_missed_in_a_sentence(seam: Seam) -> None:
    """With what it costs, and what to do."""
    assert_refused_without_each(add_on(seam))


def test_a_call_that_asks_for_more_is_missed() -> None:
    """Rung would not give it."""
    seam = Seam(f"{MODULE}:Loop._advance", Kind.CALL, "a batch is lost", ("last",))
    with pytest.raises(SeamMissing, match=r"does not have .*Loop\._advance without batch"):
        add_on(seam).check()


@pytest.mark.parametrize(
    ("version", "tested"),
    [("3.7.9", False), ("3.8.0", True), ("3.15.9", True), ("3.16.0", False), ("4.0.0", False)],
)
def test_only_tested_versions_will_do(framework: Any, version: str, tested: bool) -> None:  # noqa: FBT001 - of the table
    """Patches of the newest one are as good."""
    framework.__version__ = version
    if tested:
        add_on().check()
        return
    with pytest.raises(SeamMissing, match=r"tested with Framework 3\.8 to 3\.15, and this is"):
        add_on().check()
    assert add_on().requirement == "framework>=3.8,<3.16"


@pytest.mark.parametrize(
    ("section", "wanted"),
    [(None, True), ({}, True), ({"exact": True}, True), ({"exact": False}, False)],
)
def test_exact_is_the_default(section: dict[str, bool] | None, wanted: bool) -> None:  # noqa: FBT001 - of the table
    """The experiment file switches it off."""
    trial = SimpleNamespace(config={"reproducibility": section})
    run: Any = SimpleNamespace(info=SimpleNamespace(trial=trial))
    assert exact(run) is wanted
