"""What holds for all tests."""

import signal
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from servers.seaweed import Seaweed

# How long an example takes depends on what else the machine does: never a reason to fail.
settings.register_profile(
    "rung", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("rung")

# A shell starts what runs in the background with Ctrl-C ignored, and all that this starts too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Put logging back as it was: what a process of its own sets once, a test sets for all."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    if before is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**before)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """Give an S3 server, started for whoever asks first; tests keep to prefixes of their own."""
    with Seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server
