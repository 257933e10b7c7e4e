"""The `data` section: a free map, in which `sources` is checked."""

from typing import Any

import pytest

from rung import config


def data_of(data: Any) -> Any:
    """Return the section as it is understood."""
    text = expconf_text(data)
    return config.load(text, today_seed=0).expanded()["data"]


def expconf_text(data: Any) -> str:
    """Return an experiment file with that section."""
    import json  # noqa: PLC0415 - JSON is YAML

    searcher = {"name": "single", "metric": "loss"}
    return json.dumps({"entrypoint": "python3 x.py", "searcher": searcher, "data": data})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"url": "http://x", "nested": {"a": [1, None]}},
        {"sources": {}},
        {"sources": {"train": "s3://bucket/x", "val": "/srv/val", "tiny": "data/tiny.csv"}},
        {"sources": {"a": "file:///srv/a", "b": "s3://bucket"}, "more": 1},
        {"sources": {"a": {"location": "/srv/a", "cache": True, "stream": True}}},
        {"sources": {"a": {"location": "s3://bucket/a", "stream": True}}},
    ],
)
def test_what_is_taken_stays_as_it_is(data: Any) -> None:
    """Everything beside `sources` is the script's own, and nothing is added."""
    assert data_of(data) == data


def test_null_is_not_given() -> None:
    """As everywhere in the file."""
    assert data_of({"sources": None, "a": 1}) == {"a": 1}
    assert data_of(None) == {}
    given = {"sources": {"a": {"location": "/a", "cache": None}}}
    assert data_of(given) == {"sources": {"a": {"location": "/a"}}}


@pytest.mark.parametrize(
    ("sources", "path", "message"),
    [
        (3, "data.sources", "must be a map, not 3"),
        ({"1st": "/x"}, "data.sources", "'1st' cannot name a source: names begin with a letter"),
        (
            {"a-b": "/x", "a_b": "/y"},
            "data.sources",
            "`a-b` and `a_b` would both be RUNG_DATA_A_B; rename one",
        ),
        ({"a": 3}, "data.sources.a", "must be a place, such as `s3://bucket/train`"),
        ({"a": ""}, "data.sources.a", "must not be empty"),
        ({"a": {}}, "data.sources.a", "needs a `location`"),
        ({"a": "gs://x/y"}, "data.sources.a", "`gs:` is no known kind of place"),
        ({"a": "~/x"}, "data.sources.a", "`~` is another folder on each machine"),
        ({"a": "../x"}, "data.sources.a", "must not climb with `..`"),
        ({"a": "s3://bucket/../x"}, "data.sources.a", "must not climb with `..`"),
        ({"a": "s3://Bucket/x"}, "data.sources.a", "must be like `s3://bucket/prefix`"),
        ({"a": "s3:/bucket/x"}, "data.sources.a", "must be like `s3://bucket/prefix`"),
        ({"a": "file://srv/x"}, "data.sources.a", "must be like `file:///srv/train`"),
        (
            {"a": {"location": "/x", "cach": True}},
            "data.sources.a",
            "has no field `cach`; there are location, cache, stream",
        ),
        ({"a": {"location": "/x", "cache": 1}}, "data.sources.a", "`cache` must be true or false"),
        ({"a": {"location": "x", "stream": True}}, "data.sources.a", "`stream` goes with places"),
        (
            {"a": {"location": "s3://bucket/x", "cache": False}},
            "data.sources.a",
            "what is in S3 is always cached",
        ),
    ],
)
def test_refusals(sources: Any, path: str, message: str) -> None:
    """Each names the field, says what would be right, and where it is."""
    with pytest.raises(config.InvalidExperimentFile) as refused:
        data_of({"sources": sources})
    (problem,) = refused.value.details
    assert problem.path == path
    assert message in problem.message


@pytest.mark.parametrize(
    "source", ["s9" * 9_000 + "://bucket/x", {"location": "/x", "cache" * 9_000: True}]
)
def test_what_is_refused_is_quoted_in_short(source: Any) -> None:
    """However long it is, so that the problem can be read."""
    with pytest.raises(config.InvalidExperimentFile) as refused:
        data_of({"sources": {"a": source}})
    (problem,) = refused.value.details
    assert len(problem.message) < 500


def test_not_too_many() -> None:
    """A list without end is refused."""
    with pytest.raises(config.InvalidExperimentFile, match="at most 64"):
        data_of({"sources": {f"s{n}": "/x" for n in range(65)}})
