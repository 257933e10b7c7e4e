"""The generator that unseeded draws of Keras share."""

import importlib
import random
import warnings
from typing import Any

import pytest

from support.framework_trials import needs

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e]


@pytest.fixture
def keras() -> Any:
    """Keras, on its own backend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports
        return importlib.import_module("keras")


def test_it_is_there_before_the_first_draw(keras: Any) -> None:
    """It follows from the seed, is made once, and Python's generator does not notice."""
    make = importlib.import_module("rung.tensorflow.exact").shared_seeds

    def drawn(seed: int) -> list[float]:
        make(seed)
        return [float(each) for each in keras.ops.convert_to_numpy(keras.random.normal((3,)))]

    keras.utils.set_random_seed(1)
    before = random.getstate()
    first, following = drawn(5), drawn(5)
    assert first != following
    assert random.getstate() == before
    for seed, expected in ((5, True), (6, False)):
        keras.utils.set_random_seed(1)
        assert (drawn(seed) == first) is expected
