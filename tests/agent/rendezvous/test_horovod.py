"""Horovod's ranks find each other without horovodrun."""

import pytest

from support.agent_rig import Rig

pytestmark = pytest.mark.processes

SCRIPT = """
import torch, horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
print(hvd.rank(), hvd.size(), hvd.local_rank(), total.item())
hvd.shutdown()
"""


@pytest.mark.horovod
async def test_horovod_over_three_slots(horovod: None, running: Rig) -> None:
    """`hvd.init()` finds rank, size and the others; a sum goes over all of them."""
    launcher = {"launcher": "horovod"}
    ended = await running.run_script(SCRIPT, slots=[0, 1, 2], distributed=launcher)
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    assert sorted(ended.printed()) == [f"{rank} 3 {rank} 6.0" for rank in range(3)]
