"""Values as JSON and arrays."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rung.events import RungError
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]


def test_there_and_back(part: Part) -> None:
    """Numbers of any size, text, arrays with their types, lists, tuples, dicts."""
    packing = part("serialization")
    arrays: dict[str, Any] = {}
    value = {
        "a": [1, 2.5, None, True, "x", 1 << 100],
        "b": (np.arange(3, dtype="uint8"), {"c": np.float32(0.1)}),
        "python": random.Random(3).getstate(),  # noqa: S311 - a state to keep
        "numpy": dict(np.random.default_rng(3).bit_generator.state),
    }
    text = json.dumps(packing.packed(value, "place", arrays))
    found = packing.unpacked(json.loads(text), arrays)
    np.testing.assert_array_equal(found["b"][0], [0, 1, 2])
    assert found["b"][0].dtype == np.uint8
    assert found["b"][1]["c"] == float(np.float32(0.1))
    assert (found["a"], found["python"]) == (value["a"], value["python"])
    assert found["numpy"] == value["numpy"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [object()]}, r"place\.a\[0\]"),
        ({1: 2}, "place"),
        (np.array([object()]), "place"),
    ],
)
def test_what_would_need_unpickling_is_refused(part: Part, value: Any, place: str) -> None:
    """The message says where it lies."""
    with pytest.raises(RungError, match=f"^{place}: a checkpoint holds"):
        part("serialization").packed(value, "place", {})
