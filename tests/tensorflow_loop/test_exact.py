"""Each private interface of TensorFlow that exact resuming needs is missed in a sentence.

What stands on them is tested in `test_pipeline.py` and `test_seeds.py`.
"""

import importlib

import pytest

from rung.training.introspection.seams import AddOn
from support.framework_trials import needs
from support.seams import assert_bounded, assert_refused_without_each

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.versions]


def _add_on() -> AddOn:
    # Not at the top: one process cannot hold TensorFlow and what torch compiles with.
    found: AddOn = importlib.import_module("rung.tensorflow.exact").ADD_ON
    return found


def test_each_private_interface_that_is_missing_is_one_sentence() -> None:
    """Said at start, before anything is trained."""
    assert_refused_without_each(_add_on())


def test_a_version_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older or newer; and the extras ask for those that were."""
    assert_bounded(_add_on(), monkeypatch)
