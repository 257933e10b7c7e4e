"""How ranks find each other in TensorFlow; that they do is shown in `test_several.py`."""

import importlib
import json
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from rung.core.ipc.environment import Place
from rung.events import RungError
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]


@pytest.fixture(scope="module")
def module(tf: Any) -> Any:
    """Return the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("rung.tensorflow.ranks")


def run_of(place: Place, **section: Any) -> Any:
    """Return a run of which this is one process."""
    trial = SimpleNamespace(config={"distributed": section})
    return SimpleNamespace(distributed=place, info=SimpleNamespace(trial=trial))


def test_one_alone_joins_nobody(module: Any) -> None:
    """Nor does anybody look at its launcher."""
    assert module.joined(run_of(Place(), launcher="horovod"), "rung.keras") is None


@pytest.mark.parametrize(
    ("jobs", "task"),
    [
        ({"worker": ["a:1", "b:1", "c:1"]}, {"type": "worker", "index": 1}),
        ({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": 0}),
        ({"chief": ["a:1"], "worker": ["b:1"]}, {"type": "worker", "index": 0}),
    ],
)
def test_a_cluster_of_others_is_refused(
    module: Any, monkeypatch: pytest.MonkeyPatch, jobs: dict[str, Any], task: dict[str, Any]
) -> None:
    """TensorFlow would wait for processes that do not exist; any launcher may have been named."""
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
    run = run_of(Place(rank=1, size=2, local_rank=1, local_size=2), launcher="none")
    with pytest.raises(RungError, match=r"TF_CONFIG speaks of .* environment_variables"):
        module.joined(run, "rung.keras")
