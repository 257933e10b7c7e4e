"""What an adapter uses of its framework by private names is in its add-on, and listed there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "worker" / "rung"
ADAPTERS = ("keras", "tensorflow", "lightning", "transformers")
PRIVATE = re.compile(r"_[a-z]\w*|_[A-Z]\w*")
PACKAGES = re.compile(r"keras\.src|tensorflow\.python|.*\._")
"""Modules of a framework that it does not offer."""
FRAMES = {"currentframe", "_getframe", "f_locals", "f_back"}
"""Names by which a function's caller, and so its locals, are found."""
NOT_PRIVATE = {
    "_replace",  # of named tuples
    "_find_unused_parameters_false",  # ends of Lightning's names for strategies
    "_find_unused_parameters_true",
    "_per_second",  # ends of Transformers' names for times
    "_runtime",
}


def private_names(source: str) -> Iterator[str]:
    """Yield the private names that a module uses of others: attributes, strings, imports."""
    tree = ast.parse(source)
    own = set(_own(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in own:
                continue
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name) or name in FRAMES:
                yield name
            case ast.Constant(value=str(text)) if PRIVATE.fullmatch(text):
                yield text
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith("rung."):
                hidden = PACKAGES.match(module) is not None
                yield from (each.name for each in names if hidden or PRIVATE.fullmatch(each.name))
            case ast.Import(names=names):
                yield from (each.name for each in names if PACKAGES.match(each.name))


def _own(tree: ast.AST) -> Iterator[str]:
    """Yield what the classes of a module define and set of themselves."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def listed(adapter: str) -> set[str]:
    """Return all words of the module that lists an add-on's private interfaces."""
    tree = ast.parse((WORKER / adapter / "exact" / "seams.py").read_text(encoding="utf-8"))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}


def modules(adapter: str, *, of_add_on: bool) -> list[Path]:
    """Return the files of an adapter, those of its add-on or the others."""
    folder = WORKER / adapter
    found = [each for each in folder.rglob("*.py") if each.name != "seams.py"]
    return [each for each in found if (folder / "exact" in each.parents) is of_add_on]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_uses_public_names_only(adapter: str) -> None:
    """Outside of its add-on."""
    found = {
        str(path.relative_to(WORKER)): names
        for path in modules(adapter, of_add_on=False)
        if (names := {*private_names(path.read_text(encoding="utf-8"))} - NOT_PRIVATE)
    }
    assert found == {}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_an_add_on_uses_is_listed(adapter: str) -> None:
    """So that it is checked when the add-on is imported."""
    allowed = listed(adapter) | FRAMES
    found = {
        name
        for path in modules(adapter, of_add_on=True)
        for name in private_names(path.read_text(encoding="utf-8"))
    }
    assert found
    assert found - allowed == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("model._initial_epoch = 3", ["_initial_epoch"]),
        ("getattr(model, '_tr_loss', None)", ["_tr_loss"]),
        ("from keras.src.random import seed_generator", ["seed_generator"]),
        ("import tensorflow.python.eager", ["tensorflow.python.eager"]),
        ("from transformers.trainer import _private", ["_private"]),
        ("class A(B):\n def f(self): return self._inherited", ["_inherited"]),
        ("inspect.currentframe()", ["currentframe"]),
        ("class A:\n def __init__(self): self._own = 1\n def f(self): return self._own", []),
        ("from rung.core._train import wire_values", []),
        ("model.trainable_variables", []),
    ],
)
def test_the_search_finds_what_is_private(source: str, found: list[str]) -> None:
    """In every way in which it could be named."""
    assert list(private_names(source)) == found
