"""What the control message of a step costs n ranks, beside torch.distributed.

    python -m benchmarks.training.control_message [--ranks 4] [--steps 2000]

After each step all ranks of a run do the same: leave, checkpoint, or go on. The chief decides, and
its decision goes to all ranks in one message (`PreemptContext.agree`). The peer is what a script
does without it: `broadcast_object_list` of torch.distributed over gloo, with the same decision as
one object. Each step of the loop adds up a tensor over the ranks, as training does, and then makes
one of the two calls, in turn; only the call is timed. What counts is the slowest rank's median.
The messages that the chief sends in a step are counted: one.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from multiprocessing.queues import SimpleQueue
from typing import Any, Final

import torch
import torch.distributed
from benchmarks.figures import figure

from rung.core import DistributedContext
from rung.core._preempt import PreemptContext
from rung.core._rank_connections import GroupServer
from rung.core._train import TargetLength
from rung.core._unmanaged_run import UnmanagedConnection, unmanaged_spec
from rung.core.ipc.environment import Place

RATIO_MIN: Final = 2.0
WISH: Final = (False, False, False)
Found = tuple[float, float, float]
"""Of a rank: medians of Rung's call and of the peer's in microseconds, messages per step."""


class Counted(GroupServer):
    """The chief's end of the connections; counts what it sends and what it waits for."""

    calls = 0

    def gather(self, call: str, value: Any) -> list[Any]:
        """Count, and gather."""
        Counted.calls += 1
        return super().gather(call, value)

    def broadcast(self, call: str, value: Any) -> Any:
        """Count, and broadcast."""
        Counted.calls += 1
        return super().broadcast(call, value)


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_main(
    rank: int, size: int, ports: tuple[int, int], steps: int, found: "SimpleQueue[Found]"
) -> None:
    """Be one rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    place = Place(rank=rank, size=size, local_rank=rank, local_size=size)
    spec = unmanaged_spec({}, None, None, None)
    with DistributedContext(place, f"127.0.0.1:{ports[1]}", "benchmark") as ranks:
        if ranks.is_chief:
            ranks._all.__class__ = Counted  # noqa: SLF001 - its messages are counted
        preempt = PreemptContext(UnmanagedConnection(), TargetLength(spec), ranks)
        gradients = torch.ones(1024)
        ours, theirs = [], []
        for _ in range(steps):
            torch.distributed.all_reduce(gradients)
            started = time.perf_counter_ns()
            preempt.agree(WISH)
            ours.append((time.perf_counter_ns() - started) / 1000)
            torch.distributed.all_reduce(gradients)
            started = time.perf_counter_ns()
            torch.distributed.broadcast_object_list([(False, *WISH)], 0)
            theirs.append((time.perf_counter_ns() - started) / 1000)
        found.put((statistics.median(ours), statistics.median(theirs), Counted.calls / steps))
    torch.distributed.destroy_process_group()


def measured(size: int, steps: int) -> Found:
    """Return the slowest rank's medians, and the messages per step."""
    spawn = multiprocessing.get_context("spawn")
    found: SimpleQueue[Found] = spawn.SimpleQueue()
    ports = (free_port(), free_port())
    processes = [
        spawn.Process(target=rank_main, args=(rank, size, ports, steps, found))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    results = [found.get() for _ in processes]
    for process in processes:
        process.join()
    ours, theirs, calls = zip(*results, strict=True)
    return max(ours), max(theirs), max(calls)


def main() -> int:
    """Measure, print, and return 0 if one message per step goes out, as fast as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ours, theirs, calls = measured(arguments.ranks, arguments.steps)
    result = {
        "ranks": arguments.ranks,
        "messages_per_step": calls,
        "rung_median_us": ours,
        "broadcast_object_list_median_us": theirs,
        "ratio": theirs / ours,
        "ratio_min": RATIO_MIN,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{arguments.ranks} ranks, {calls:g} control message per step")
        figure(
            f"control message of a step, {arguments.ranks} ranks, slowest rank's median",
            ours,
            "µs",
            beside=f"{theirs:.1f}, torch.distributed's broadcast_object_list: {theirs / ours:.1f} "
            f"times that, wanted: at least {RATIO_MIN:g}",
        )
    return int(calls != 1 or theirs / ours < RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main())
