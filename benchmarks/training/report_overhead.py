"""What a report costs a training loop: Rung's against TensorBoard's, in the same loop.

    python -m benchmarks.training.report_overhead [--steps N]

Each step trains a tiny network and then reports one metric; only the report is timed. The agent's
end is a process of its own that reads and decodes, as the agent does. How long it then leaves the
socket alone (`REST_S` of `rung.agent.run.ipc_server`, or `--rest-ms`) decides what a report
costs: to wake a process that waits for the socket is dearer than all the rest of the report.
TensorBoard comes from the dependency group `bench`; without it, Rung's cost is printed alone.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import multiprocessing.synchronize
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.figures import figure

from rung import core
from rung.agent.run import ipc_server
from rung.core.ipc import environment, protocol
from rung.core.ipc.protocol import Hello, Welcome
from rung.events.trial import RunSpec

LIMIT_US = 25.0
SPEC = RunSpec(
    experiment_id="benchmark",
    trial_id="benchmark.0",
    trial_index=0,
    run=1,
    hparams={},
    seed=0,
    length=None,
    time_metric="batches",
    restore=[],
    code_digest=None,
    config={},
)


class Agent(asyncio.Protocol):
    """The agent's side of a connection: welcome the trial, decode all that it says."""

    def __init__(self, rest_s: float, done: asyncio.Future[None]) -> None:
        self._rest_s = rest_s
        self._done = done
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Decode, then leave the socket alone for a moment."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if isinstance(protocol.trial_decoder.decode(line), Hello):
                welcome = Welcome(SPEC, "agent", Path(tempfile.gettempdir()).as_uri(), [0])
                self._transport.write(protocol.frame(welcome))
        if self._rest_s:
            self._transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_later(self._rest_s, self._transport.resume_reading)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """All was read."""
        self._done.set_result(None)


def serve(path: str, rest_s: float, ready: multiprocessing.synchronize.Event) -> None:
    """Be an agent for one trial."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        await loop.create_unix_server(lambda: Agent(rest_s, done), path)
        ready.set()
        await done

    asyncio.run(main())


def train(steps: int, report: Callable[[int, float], None]) -> list[float]:
    """Train for some steps and return what each report took, in microseconds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(16, 32), torch.randn(16, 1)
    times = []
    for step in range(steps):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own annotations
        optimizer.step()
        value = loss.item()
        started = time.perf_counter_ns()
        report(step, value)
        times.append((time.perf_counter_ns() - started) / 1000)
    return times[steps // 10 :]


def rung_times(steps: int, folder: Path, rest_s: float) -> list[float]:
    """Report to a process that reads, as the agent does."""
    path = str(folder / "agent.sock")
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    agent = spawn.Process(target=serve, args=(path, rest_s, ready))
    agent.start()
    ready.wait()
    os.environ |= {
        environment.SOCKET_VARIABLE: path,
        environment.ALLOCATION_VARIABLE: "benchmark.0.1",
    }
    with core.init() as ctx:
        times = train(steps, lambda step, v: ctx.train.report_training_metrics(step, {"loss": v}))
    agent.join()
    return times


def tensorboard_times(steps: int, folder: Path) -> list[float] | None:
    """Report to a SummaryWriter, or return None where TensorBoard is not installed."""
    with contextlib.suppress(ImportError):
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tensorboard")) as writer:
            return train(steps, lambda step, v: writer.add_scalar("loss", v, step))
    return None


def summary(times: list[float]) -> tuple[float, float]:
    """Return median and 99th percentile."""
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def main() -> int:
    """Measure, print, and say by the exit code whether the aim is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    rest_s: float = getattr(ipc_server, "REST_S", 0.0)
    parser.add_argument("--rest-ms", type=float, default=rest_s * 1000, help="the agent's pause")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        median, p99 = summary(rung_times(arguments.steps, Path(name), arguments.rest_ms / 1000))
        other = tensorboard_times(arguments.steps, Path(name))
    result = {"rung_median_us": median, "rung_p99_us": p99, "limit_us": LIMIT_US}
    if other is not None:
        other_median, other_p99 = summary(other)
        result |= {"tensorboard_median_us": other_median, "tensorboard_p99_us": other_p99}
        result["ratio"] = other_median / median
    if arguments.json:
        print(json.dumps(result))
        return int(median >= LIMIT_US)
    beside = f"p99 {p99:.1f}; wanted: under {LIMIT_US:g}"
    if other is not None:
        beside += f"; TensorBoard's add_scalar {other_median:.1f}, p99 {other_p99:.1f}"
    figure("a report inside a training step, median", median, "µs", beside=beside)
    return int(median >= LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
