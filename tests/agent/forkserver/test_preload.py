"""What runs find in a fork of the fork server: torch, at once, as if freshly imported."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rung.agent.forkserver.threads import cores
from support.agent_rig import Ended, Rig

pytest.importorskip("torch")

pytestmark = pytest.mark.e2e

TRAIN = """
import sys, threading, time
assert "torch" in sys.modules and "torch._dynamo" in sys.modules
began = time.perf_counter()
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.Linear(8 * 36, 10))
optimizer = torch.optim.Adam(model.parameters())
data = torch.rand(64, 1, 8, 8)
for step in range(20):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data), torch.arange(64) % 10)
    loss.backward()
    optimizer.step()
took = time.perf_counter() - began
print(loss.item().hex(), torch.get_num_threads(), torch.cuda.is_initialized())
print(took)
"""
LOADER = """
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return float(index)
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    print([batch.sum().item() for batch in loader])
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """Give one rig with a fork server for the whole module: warming up takes seconds."""
    rig = Rig(tmp_path_factory.mktemp("warm"))
    rig.start(cold=False, slots=4)
    yield rig
    await rig.stop()


async def _run(rig: Rig, script: str, **options: object) -> Ended:
    ended = await rig.run_script(script, **options)
    assert ended.exit.outcome == "finished", ended.lines
    return ended


@pytest.mark.asyncio(loop_scope="module")
async def test_same_bits_every_time(warm: Rig) -> None:
    """Forks that seed alike train alike, bit for bit."""
    runs = [(await _run(warm, TRAIN)).printed() for _ in range(4)]
    assert len({first for first, _ in runs}) == 1
    assert runs[0][0].endswith(f"{max(1, cores() // 4)} False")


@pytest.mark.asyncio(loop_scope="module")
async def test_same_bits_as_a_fresh_interpreter(warm: Rig) -> None:
    """A fork computes what an interpreter of its own computes with as many threads."""
    forked = (await _run(warm, TRAIN)).printed()[0].split()[0]
    script = TRAIN.replace('assert "torch"', 'True or "torch"')
    variables = ["PYTHONHASHSEED=0", "OMP_NUM_THREADS=1"]
    fresh = await _run(warm, script, environment={"environment_variables": variables})
    assert fresh.printed()[0].split()[0] == forked


@pytest.mark.asyncio(loop_scope="module")
async def test_threads_after_the_fork(warm: Rig) -> None:
    """A run may use several threads, although its parent used one."""
    script = TRAIN + (
        "assert torch.get_num_threads() == 3\n"
        "import numpy\nassert numpy.isfinite(numpy.ones((300, 300)) @ numpy.ones(300)).all()\n"
        "assert torch.isfinite(torch.rand(300, 300) @ torch.rand(300, 300)).all()\n"
    )
    variables = ["OMP_NUM_THREADS=3"]
    await _run(warm, script, environment={"environment_variables": variables})


@pytest.mark.asyncio(loop_scope="module")
async def test_worker_processes(warm: Rig) -> None:
    """DataLoader workers start, finish and leave nothing behind."""
    assert (await _run(warm, LOADER)).printed() == ["[1.0, 5.0, 9.0, 13.0]"]


@pytest.mark.asyncio(loop_scope="module")
async def test_spawned_processes(warm: Rig) -> None:
    """Processes that multiprocessing spawns find the script."""
    script = (
        "import multiprocessing\n"
        "def square(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(square, [2, 3]))\n"
    )
    assert (await _run(warm, script)).printed() == ["[4, 9]"]


@pytest.mark.asyncio(loop_scope="module")
async def test_random_numbers_differ(warm: Rig) -> None:
    """Runs that do not seed do not share random numbers."""
    script = (
        "import random, numpy, torch\n"
        "print(random.random(), numpy.random.random(), torch.rand(1).item())"
    )
    printed = [(await _run(warm, script)).printed()[0].split() for _ in range(2)]
    assert len({number for numbers in printed for number in numbers}) == 6


def test_no_frameworks_no_harm(tmp_path: Path) -> None:
    """The modules of the fork server do not import what only the agent needs."""
    code = "import sys, rung.agent.forkserver.server; print('rung.ledger' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "False"


FOR_CUDA = """
import os
from rung.agent.forkserver.preload import warm_up
found = warm_up(cuda=True)
import torch
assert not torch.cuda.is_initialized()
assert "CUDA_VISIBLE_DEVICES" not in os.environ
if os.fork() == 0:
    torch.ones(2, requires_grad=True).sum().backward()
    os._exit(0)
print(found[:2], os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os._exit(0)
"""


def test_for_cuda(tmp_path: Path) -> None:
    """Where runs are to use CUDA, warming up leaves it, and the environment, alone."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", FOR_CUDA],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.stdout.strip() == "['numpy', 'torch'] 0"
