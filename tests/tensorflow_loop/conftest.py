"""TensorFlow and the modules that need it, imported when a test that runs asks for them."""

import importlib
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.framework_trials import QUIET, parent


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, on the CPU."""
    os.environ.update(QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports
        return importlib.import_module("tensorflow")


@pytest.fixture(scope="session")
def part(tf: Any) -> Callable[[str], Any]:
    """Return the module of `rung.tensorflow` that has a name."""

    def module(name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(f"rung.tensorflow.{name}")

    return module


@pytest.fixture(scope="session")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with TensorFlow that forks trials, for all tests of them."""
    with parent("support.frameworks.tensorflow_trial", {}) as started:
        yield started
