"""The searcher's view of a configuration."""

from typing import Any

import pytest

from rung.events.errors import InvalidConfig
from rung.searcher.search_settings import read_settings
from rung.searcher.state import plan_method
from searcher.scenario import config


def test_nothing_given_means_the_default() -> None:
    """A null counts as not given."""
    settings = read_settings(
        config() | {"resources": {"priority": None, "resource_pool": ""}, "max_restarts": None}
    )
    assert (settings.pool, settings.slots, settings.priority) == ("default", 1, 42)
    assert settings.max_restarts == 5


@pytest.mark.parametrize(
    ("name", "fields", "path"),
    [
        ("pbt", {}, "searcher.name"),
        ("random", {}, "searcher.max_trials"),
        ("async_halving", {"max_trials": 3}, "searcher.num_rungs"),
        ("adaptive_asha", {"max_trials": 3, "max_time": None}, "searcher.max_time"),
        ("hyperband", {"max_time": None}, "searcher.max_time"),
        ("random", {"max_trials": "3"}, "searcher.max_trials"),
    ],
)
def test_what_cannot_be_searched_is_refused(name: str, fields: dict[str, Any], path: str) -> None:
    """A configuration that lacks what its method needs is refused by the field's path."""
    with pytest.raises(InvalidConfig) as caught:
        plan_method(read_settings(config(name, **fields)))
    assert caught.value.problems[0][0] == path
