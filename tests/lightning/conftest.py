"""A process that has Lightning imported and forks trials."""

import subprocess
from collections.abc import Iterator

import pytest

from support.framework_trials import parent


@pytest.fixture(scope="session")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Lightning, for all tests of it."""
    with parent("support.frameworks.lightning_trial", {}) as started:
        yield started
