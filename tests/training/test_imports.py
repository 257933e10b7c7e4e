"""What an adapter's import loads: its own framework, and no other."""

import os
import subprocess
import sys

import pytest

from support.framework_trials import needs

FRAMEWORKS = ("torch", "keras", "tensorflow", "lightning", "transformers")


def _loaded(module: str, **variables: str) -> set[str]:
    """Return the frameworks that are loaded when a module was imported."""
    code = f"import sys, {module}; print(*({set(FRAMEWORKS)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | variables,
    )
    return set(done.stdout.split())


def test_the_core_loads_none() -> None:
    """Nor does any of its modules."""
    assert _loaded("rung.training, rung.training.shares, rung.training.averages") == set()


@pytest.mark.e2e
@needs("tensorflow", "keras")
@pytest.mark.parametrize("module", ["rung.keras", "rung.tensorflow"])
def test_keras_on_tensorflow_loads_no_torch(module: str) -> None:
    """It would take a second, and hundreds of megabytes."""
    found = _loaded(module, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
    assert found == {"tensorflow", "keras"}
