"""A process that has Lightning imported and forks trials."""

import subprocess
from collections.abc import Iterator

import pytest

from frontdoors.trials import parent


@pytest.fixture(scope="session")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Lightning, for all tests of it."""
    with parent("frontdoors.lightning_trial", {}) as started:
        yield started
