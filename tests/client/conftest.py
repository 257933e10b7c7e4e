"""A scripted server for tests of the client."""

from collections.abc import Iterator

import pytest

from support.scripted_server import Scripted


@pytest.fixture
def server() -> Iterator[Scripted]:
    """Return a server that runs and knows nothing yet."""
    with Scripted() as scripted:
        yield scripted
