"""What the ranks of a run do together; that it works is shown in `test_several.py`."""

from collections.abc import Callable
from typing import Any

import pytest

from rung.core import DistributedContext
from rung.core.ipc.environment import Place
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]


def test_alone_nothing_is_done(tf: Any, part: Part) -> None:
    """Gradients are the very ones given, and variables stay what they are."""
    alone = part("collectives").Collective(DistributedContext(Place()))
    gradients = [tf.ones(2), None]
    assert all(a is b for a, b in zip(alone.averaged(gradients, None), gradients, strict=True))
    alone.share([tf.Variable(1.0)])
