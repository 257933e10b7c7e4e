"""Errors of the worker that other components know by their names."""

import importlib

import pytest

from rung.events import RungError
from rung.events.trial import FAULTS_OF_CODE


@pytest.mark.parametrize("fault", sorted(it for it in FAULTS_OF_CODE if it.startswith("rung.")))
def test_a_fault_of_code_is_an_error_of_that_name(fault: str) -> None:
    """The searcher compares names, as tracebacks have them."""
    module, _, name = fault.rpartition(".")
    error = getattr(importlib.import_module(module), name)
    assert issubclass(error, RungError)
    assert f"{error.__module__}.{error.__qualname__}" == fault
