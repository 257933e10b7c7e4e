"""The chart as Helm renders it, once for each file of values."""

import pytest
import yaml

from deploy.rendered import EXAMPLES, Objects, render


@pytest.fixture(scope="session", params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> str:
    """Return the name of a file of values."""
    return str(request.param)


@pytest.fixture(scope="session")
def objects(example: str) -> Objects:
    """Return what Helm makes of an example."""
    done = render(example)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]
