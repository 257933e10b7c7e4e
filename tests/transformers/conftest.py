"""A process that has Transformers imported and forks trials."""

import subprocess
from collections.abc import Iterator

import pytest

from support.framework_trials import parent


@pytest.fixture(scope="session")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Transformers, for all tests of it."""
    with parent("support.frameworks.transformers_trial", {}) as started:
        yield started
