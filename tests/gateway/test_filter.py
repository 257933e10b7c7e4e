"""The filter language: what terms select, what is refused, and that combinations are logic."""

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conftest import World
from rung.events import Payload, fact
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import CancelRequested, DescriptionChanged, ExperimentSubmitted
from rung.events.trial import MetricValue, TrialRequested, TrialValidated
from rung.gateway.projections.experiments import (
    ExperimentProjection,
    Selection,
    list_experiments,
)
from rung.gateway.projections.filter import InvalidFilter, conditions_of
from support.gateway.scenario import config

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "services/gateway/rung/gateway/page/list.js"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Given(NamedTuple):
    """An experiment as the tests make it."""

    id: str
    name: str
    owner: str
    day: int
    labels: list[str]
    hyperparameters: dict[str, Any]
    errors: list[float]
    kept_mib: int
    canceled: bool = False
    archived: bool = False


_LOG = {"type": "log", "minval": -4, "maxval": -2}
_CHOICE = {"opt": {"type": "categorical", "vals": ["adam", "sgd", 3]}}
_DEEP = {"layers": {"width": {"type": "int", "minval": 8, "maxval": 64}}}
EXPERIMENTS = [
    Given("aaaa0001", "digits", "anna", 1, ["keep"], {"lr": 0.5}, [0.4, 0.2, 0.3], 10),
    Given("aaaa0002", "digits large", "ben", 20, ["keep", "big"], {"lr": _LOG}, [], 0),
    Given("aaaa0003", "words", "anna", 28, [], _CHOICE | _DEEP, [0.9], 3_000, canceled=True),
    Given("aaaa0004", "a, b", "me", 28, ["a,b"], {"opt": "adam", "on": True}, [0.05], 0),
    Given("aaaa0005", "old", "anna", 1, [], {}, [], 0, archived=True),
]


def _submitted(it: Given) -> ExperimentSubmitted:
    found = config() | {"name": it.name, "labels": it.labels}
    found["hyperparameters"] = it.hyperparameters
    return ExperimentSubmitted(
        experiment_id=it.id, config=found, source="", code_digest=None, owner=it.owner
    )


def _facts(it: Given) -> Iterator[Payload]:
    yield _submitted(it)
    about: dict[str, Any] = {"experiment_id": it.id, "trial_id": f"{it.id}.0"}
    yield TrialRequested(**about, index=0, bracket=0, hparams={}, seed=1)
    for step, error in enumerate(it.errors, 1):
        metrics: dict[str, MetricValue] = {"error": error, "epochs": step, "accuracy": 1 - error}
        yield TrialValidated(**about, run=1, steps_completed=step, metrics=metrics)
    if it.kept_mib:
        yield CheckpointStored(
            **about,
            run=1,
            checkpoint_id=f"{it.id}.0.1.1",
            steps_completed=1,
            size_bytes=it.kept_mib << 20,
            files=1,
            digest="0" * 64,
        )
    if it.canceled:
        yield CancelRequested(experiment_id=it.id)
    if it.archived:
        yield DescriptionChanged(experiment_id=it.id, archived=True, notes="a keepsake")


def _tables(experiments: list[Given]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    projection = ExperimentProjection()
    db.executescript(projection.schema)
    for it in experiments:
        for number, data in enumerate(_facts(it), 1):
            event = fact(
                data,
                source="/rung/test",
                origin=f"agent/{it.id}",
                sequence=number,
                time=f"2026-02-{it.day:02}T00:00:00.000Z",
                actor=it.owner,
            )
            projection.evolve(db, it.id, event)
            projection.flush(db)
    return db


@pytest.fixture(scope="module")
def db() -> sqlite3.Connection:
    """Return the tables of the experiments."""
    return _tables(EXPERIMENTS)


def _selected(db: sqlite3.Connection, text: str, me: str = "") -> list[str]:
    conditions = conditions_of(text, now=NOW, me=me)
    found = list_experiments(db, Selection(conditions, sort="name", descending=False))
    return sorted(it.experiment.id[-1] for it in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1234"),
        ("   ", "1234"),
        ("digits", "12"),
        ("DIGITS lar", "2"),
        ("-digits", "34"),
        ('"digits large"', "2"),
        ('name:"digits large"', "2"),
        ("name:digits*", "12"),
        ("name:digits,words", "13"),
        ("name!=digits,words", "24"),
        ('name:"a, b"', "4"),
        ('label:"a,b"', "4"),
        ("state:active", "124"),
        ("-state:active", "3"),
        ("state:act*", "124"),
        ("id:aaaa000[12]", ""),
        ("owner:anna", "13"),
        ("owner:me", "2"),
        ("-owner:anna,ben", "4"),
        ("label:keep", "12"),
        ("label:keep -label:big", "1"),
        ("label!=keep", "34"),
        ("method:async_halving", "1234"),
        ("older:7d", "12"),
        ("newer:7d", "34"),
        ("older:4w", "1"),
        ("newer:36h", "34"),
        ("submitted<2026-02-20", "1"),
        ("submitted<=2026-02-20T00:00", "12"),
        ("submitted>2026-02-20T02:00+01:00", "34"),
        ("ended>2020-01-01", ""),
        ("trials>0", "1234"),
        ("trials=2", ""),
        ("best<0.3", "14"),
        ("best>=.05", "134"),
        ("metric.accuracy>0.5", "14"),
        ("-metric.accuracy>0.5", "23"),
        ("metric.none>0", ""),
        ("size>1GiB", "3"),
        ("size>10MB", "13"),
        ("size=0", "24"),
        ("archived:true", "5"),
        ("archived:any", "12345"),
        ("archived:false", "1234"),
        ("-archived:true", "1234"),
        ("archived:any keepsake", "5"),
        ("archived:maybe", None),
        ("archived=true", None),
        ("hp.lr=0.5", "1"),
        ("hp.lr<0.001", "2"),
        ("hp.lr>=1e-2", "12"),
        ("hp.lr>0.01", "1"),
        ("hp.lr!=0.5", "2"),
        ("hp.opt:adam", "34"),
        ("hp.opt:sgd,adam -hp.opt:sgd", "4"),
        ("hp.opt=3", "3"),
        ("hp.opt!=adam", "12"),
        ("hp.on:true", "4"),
        ("hp.layers.width=9", "3"),
        ("hp.layers.width>64", ""),
        ('"', None),
        ('name:"a', None),
        ("name:a,", None),
        ("name:", None),
        ("name>a", None),
        ("nme:a", None),
        ("http://x", None),
        ("trials:3", None),
        ("trials>x", None),
        ("trials>1,2", None),
        ("trials>1GiB", None),
        ("size>1XB", None),
        ("older:yesterday", None),
        ("older>7d", None),
        ("submitted=2026-02-20", None),
        ("older:999999w", None),
        ("hp.lr<adam", None),
        ("state:failed", None),
        ("-state:active,complete", None),
        ("state!=Active", None),
        ("hp.:1", None),
        ("a\0b", None),
        ("a " * 60, None),
        ("a" * 3_000, None),
    ],
)
def test_what_a_filter_selects(db: sqlite3.Connection, text: str, expected: str | None) -> None:
    """Each field and operator; what cannot be read is refused."""
    if expected is None:
        with pytest.raises(InvalidFilter):
            conditions_of(text, now=NOW)
    else:
        assert _selected(db, text, me="ben") == list(expected)


_REFERENCE: dict[str, Callable[[Given], bool]] = {
    "owner:anna": lambda it: it.owner == "anna",
    "label:keep": lambda it: "keep" in it.labels,
    "label:big,keep": lambda it: bool({"big", "keep"} & set(it.labels)),
    "best<0.5": lambda it: bool(it.errors) and min(it.errors) < 0.5,
    "metric.accuracy<=0.5": lambda it: bool(it.errors) and 1 - min(it.errors) <= 0.5,
    "hp.lr>0.3": lambda it: it.hyperparameters["lr"] > 0.3,
    "older:14d": lambda it: it.day <= 15,
    "size>=1MiB": lambda it: it.kept_mib >= 1,
    "state:active": lambda it: not it.canceled,
    "name:x*": lambda it: it.name.startswith("x"),
    "xa": lambda it: it.name == "xa",
}
_GIVEN = st.builds(
    Given,
    id=st.uuids().map(lambda it: it.hex[:8]),
    name=st.sampled_from(["xa", "xb", "yc"]),
    owner=st.sampled_from(["anna", "ben"]),
    day=st.integers(1, 28),
    labels=st.lists(st.sampled_from(["keep", "big", "x"]), unique=True),
    hyperparameters=st.fixed_dictionaries({"lr": st.floats(0, 1)}),
    errors=st.lists(st.sampled_from([0.1, 0.5, 0.9]), max_size=4),
    kept_mib=st.integers(0, 2),
    canceled=st.booleans(),
    archived=st.just(False),  # noqa: FBT003 - what is archived is left out
)
_TERMS = st.lists(st.tuples(st.booleans(), st.sampled_from(sorted(_REFERENCE))), max_size=5)


@given(st.lists(_GIVEN, max_size=8, unique_by=lambda it: it.id), _TERMS)
def test_combinations_are_logic(experiments: list[Given], terms: list[tuple[bool, str]]) -> None:
    """All terms hold, negated ones do not: as a reference in Python says."""
    db = _tables(experiments)
    text = " ".join(f"{'-' if negated else ''}{term}" for negated, term in terms)
    conditions = conditions_of(text, now=NOW)
    found = {it.experiment.id for it in list_experiments(db, Selection(conditions))}
    db.close()
    expected = {
        it.id
        for it in experiments
        if all(_REFERENCE[term](it) != negated for negated, term in terms)
    }
    assert found == expected


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """And SQLite takes what was read."""
    db = _tables([])
    try:
        conditions = conditions_of(text, now=NOW)
    except InvalidFilter:
        conditions = []
    assert list_experiments(db, Selection(conditions)) == []
    db.close()


def test_the_documents_name_every_field() -> None:
    """Those for users, and the hint of the page."""
    with pytest.raises(InvalidFilter) as refused:
        conditions_of("zzzzzz:1", now=NOW)
    fields = str(refused.value).partition("there are ")[2].partition(" (")[0].split(", ")
    assert len(fields) > 15
    users, page = (_ROOT / "docs/FILTERS.md").read_text(), _PAGE.read_text()
    assert [name for name in fields if f"`{name}`" not in users] == []
    assert [name for name in fields if name not in page] == []


async def test_over_http(world: World) -> None:
    """Beside the other parameters; a refusal names the parameter, the term and what is near."""
    for it in EXPERIMENTS:
        await world.write(_submitted(it))
    async with world.gateway() as client:
        found = await client.get("/experiments", params={"filter": "hp.lr>=0.001 -label:big"})
        both = await client.get("/experiments", params={"filter": "hp.lr>0", "label": "big"})
        refused = await client.call("GET", "/experiments", params={"filter": "lable:big"})
    assert sorted(it["id"] for it in found["items"]) == ["aaaa0001"]
    assert [it["id"] for it in both["items"]] == ["aaaa0002"]
    assert refused.status == 400
    assert "filter" in refused.json["detail"]
    assert "did you mean label?" in refused.json["detail"]
