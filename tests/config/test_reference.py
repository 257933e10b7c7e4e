"""The reference of the experiment file: every field, with an example that loads."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from rung.config import load
from rung.config.docs.examples import EXAMPLES, flow, in_file
from rung.config.docs.reference import OWN_METHODS, Field, every_field, reference, tables

_ROOT: Final = Path(__file__).parents[2]
_FACTS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "expconf_v0.json").read_text()
)["schemas"]
_LISTED: Final = [field for table in tables() for field in table.fields]


def test_the_page_is_made_from_the_schema() -> None:
    """`docs/EXPERIMENT_FILE.md` is what the sections say (`make docs` writes it)."""
    assert (_ROOT / "docs/EXPERIMENT_FILE.md").read_text() == reference()


def test_every_field_is_listed_once() -> None:
    """No section is left out, and none appears under two headings."""
    listed = [(field.path, field.kind) for field in _LISTED]
    assert len(set(listed)) == len(listed)
    titles = {table.title for table in tables()}
    missing = [it.name for it in every_field() if (it.path, it.kind) not in listed]
    assert [name for name in missing if name not in titles] == []


def test_every_field_has_a_meaning() -> None:
    """No row of the page is empty."""
    assert [field.name for field in _LISTED if not (field.about and field.type)] == []


@pytest.mark.parametrize("field", _LISTED, ids=lambda it: f"{it.name}-{it.kind}")
def test_every_field_has_an_example(field: Field) -> None:
    """The page shows a line for it that can be copied."""
    assert field.path[-1] in field.example() or "*" in field.path


@pytest.mark.parametrize("example", EXAMPLES, ids=flow)
def test_every_example_loads(example: dict[str, Any]) -> None:
    """Each is a valid part of an experiment file, and is of use to a field."""
    load(json.dumps(in_file(example)), today_seed=1)
    assert any(field.set_in(example) for field in _LISTED)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("experiment", ()),
        ("environment", ("environment",)),
        ("optimizations", ("optimizations",)),
        ("reproducibility", ("reproducibility",)),
        ("resources", ("resources",)),
        *(
            (f"searcher-{name.replace('_', '-')}", ("searcher",))
            for name in ("single", "random", "grid", "async_halving", "adaptive_asha")
        ),
    ],
)
def test_what_is_of_rung_alone_is_marked(section: str, path: tuple[str, ...]) -> None:
    """A field is marked exactly where Determined's section has none of that name."""
    method = section.removeprefix("searcher-").replace("-", "_")
    known = set(_FACTS[section]["fields"]) | {"max_time", "time_metric", "max_length", "data"}
    for field in _LISTED:
        if field.path[:-1] == path and field.kind in {None, ("name", method)}:
            assert field.own == (field.path[-1] not in known), field.name


def test_which_methods_are_of_rung_alone() -> None:
    """They are those that Determined's schema does not have."""
    sections = {name.removeprefix("searcher-").replace("-", "_") for name in _FACTS}
    listed = {table.title[len("searcher: {name: ") : -1] for table in tables()}
    assert {name for name in listed if name and name in OWN_METHODS} == OWN_METHODS
    assert not OWN_METHODS & sections
