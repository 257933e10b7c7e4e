"""The searcher's view of a configuration."""

from rung.searcher.state import read_settings
from support.searcher.scenario import config


def test_nothing_given_means_the_default() -> None:
    """A null counts as not given."""
    settings = read_settings(
        config(max_trials=2)
        | {"resources": {"priority": None, "resource_pool": ""}, "max_restarts": None}
    )
    assert (settings.pool, settings.slots, settings.priority) == ("default", 1, 42)
    assert settings.max_restarts == 5
