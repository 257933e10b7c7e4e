"""A framework that lacks one of its private interfaces, for the length of a test."""

import importlib
import inspect
import tomllib
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import pytest

from rung.training.introspection.seams import AddOn, Kind, Seam, SeamMissing


def remove(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a private interface out of the framework, as if it had another name there."""
    module, _, name = seam.path.partition(":")
    *above, last = name.split(".")
    owner: Any = importlib.import_module(module)
    for part in above:
        owner = getattr(owner, part)
    if seam.kind is Kind.ATTRIBUTE:
        monkeypatch.delattr(owner, last)
        return
    found: Any = getattr(owner, last)
    if seam.kind is Kind.FIELDS:
        fields = dict(found.DESCRIPTOR.fields_by_name)
        del fields[seam.expected[0]]
        monkeypatch.setattr(
            owner, last, SimpleNamespace(DESCRIPTOR=SimpleNamespace(fields_by_name=fields))
        )
        return
    getter: Any = found.fget if isinstance(found, property) else found
    function: Any = inspect.unwrap(getter)
    function = getattr(function, "__func__", function)
    assert isinstance(function, FunctionType)
    monkeypatch.setattr(function, "__code__", _renamed(function.__code__, seam.expected[0]))


def assert_refused_without_each(add_on: AddOn) -> None:
    """Hold an add-on to one sentence per interface: what is missing, its cost, and what to do."""
    assert add_on.seams
    for seam in add_on.seams:
        add_on.check()
        with pytest.MonkeyPatch.context() as patch:
            remove(seam, patch)
            with pytest.raises(SeamMissing) as refused:
                add_on.check()
        said = str(refused.value)
        assert "\n" not in said
        assert said.startswith(f"{add_on.framework} ")
        assert seam.path in said
        assert any(each.cost in said for each in add_on.seams)
        assert add_on.requirement in said
        assert "reproducibility: {exact: false}" in said


def assert_bounded(add_on: AddOn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold an add-on to the versions that it was tested with, which the extras ask for."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert add_on.requirement in {each for extra in extras.values() for each in extra}
    module = importlib.import_module(add_on.module)
    for version in ("0.1.0", "99.0.0"):
        monkeypatch.setattr(module, "__version__", version)
        with pytest.raises(SeamMissing, match=f"this is {version}"):
            add_on.check()


def _renamed(code: CodeType, name: str) -> CodeType:
    """Return code in which everything of a name has another one."""

    def other(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{each}_renamed" if each == name else each for each in names)

    return code.replace(
        co_names=other(code.co_names),
        co_varnames=other(code.co_varnames),
        co_cellvars=other(code.co_cellvars),
        co_freevars=other(code.co_freevars),
        co_consts=tuple(
            _renamed(each, name) if isinstance(each, CodeType) else each for each in code.co_consts
        ),
    )
