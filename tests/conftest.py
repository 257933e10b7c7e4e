"""What holds for all tests."""

import gc
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import structlog
from hypothesis import HealthCheck, settings

from servers import kafka as kafka_server
from servers import keycloak as keycloak_server
from servers.kafka import KafkaBroker
from servers.keycloak import Keycloak
from servers.seaweed import Seaweed
from support.gateway import identity_provider

# What is collected stays until the end: to look through it for garbage again and again, while it
# grows and in each test, would be a tenth of the time of all.
gc.disable()

# How long an example takes depends on what else the machine does: never a reason to fail.
settings.register_profile(
    "rung", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("rung")

# Trials of a `rung up` end with it, so that a test that fails leaves none; tests of what outlives
# it set a time.
os.environ["RUNG_UNATTENDED"] = "0"

# A shell starts what runs in the background with Ctrl-C ignored, and all that this starts too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorBoard then reads and writes by its own code: where TensorFlow is installed it would import
# that, whose LLVM and the one that torch compiles with end a process which has both.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))


def pytest_collection_finish() -> None:
    """Look for garbage from now on, among what the tests make."""
    gc.freeze()
    gc.enable()


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


@pytest.fixture(scope="session")
def shared_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Give an Apache Kafka, started for whoever asks first.

    Tests leave it running and as it is, and keep to prefixes of their own.
    """
    if lacking := kafka_server.missing():
        pytest.skip(lacking)
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def keycloak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    """Give an identity provider with the realm of the tests, started for whoever asks first."""
    if lacking := keycloak_server.missing():
        pytest.skip(lacking)
    with Keycloak(tmp_path_factory.mktemp("keycloak")) as server:
        server.make_realm(identity_provider.realm())
        yield server


@pytest.fixture(scope="module")
def no_power_cuts() -> Iterator[None]:
    """Spare a module the waits for the disk: processes may be killed in it, machines are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        yield


@pytest.fixture(scope="module")
def horovod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let processes that start now import Horovod: as it is installed, or from a kept wheel."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("horovod") is None:
            folder = tmp_path_factory.mktemp("horovod")
            with zipfile.ZipFile(_kept_wheel()) as wheel:
                wheel.extractall(folder)
            paths = [str(folder), os.environ.get("PYTHONPATH", "")]
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        yield


def _kept_wheel() -> Path:
    """Return Horovod's wheel for this environment's torch; skip the test where none is kept."""
    build = Path(__file__).parents[1] / "deploy" / "horovod" / "build"
    environment = os.environ | {"PYTHON": sys.executable}
    kept = subprocess.run(
        [build, str(Path(sys.prefix)), "--kept"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    if kept.returncode != 0:
        pytest.skip(f"Horovod is not installed, and {kept.stderr.strip()}")
    return Path(kept.stdout.strip())
