"""What the ranks of a run do together; that it works is shown in `test_several.py`."""

from collections.abc import Callable
from typing import Any

import pytest

from core.test_distributed import on_agents, ranked
from frontdoors.trials import needs
from rung.core.distributed import DistributedContext, Place
from rung.events import RungError

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]


def test_alone_nothing_is_done(tf: Any, part: Part) -> None:
    """Gradients are the very ones given, and variables stay what they are."""
    alone = part("collective").Collective(DistributedContext(Place()))
    gradients = [tf.ones(2), None]
    assert all(a is b for a, b in zip(alone.averaged(gradients, None), gradients, strict=True))
    alone.share([tf.Variable(1.0)])


def test_ranks_that_were_not_told_of_each_other_are_refused(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what to write into the experiment file."""
    monkeypatch.delenv("TF_CONFIG", raising=False)

    def join(ranks: DistributedContext) -> str:
        with pytest.raises(RungError) as refused, part("collective").joined(ranks):
            pass
        return str(refused.value)

    said = ranked(on_agents(2), join)
    assert all("distributed: {launcher: tensorflow}" in each for each in said)
