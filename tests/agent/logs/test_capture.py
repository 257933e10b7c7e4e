"""What a process prints, from its pipes to the reports of its run."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rung.agent.logs.capture import LogCapture
from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.outbox.outbox import Outbox
from rung.events import decode
from rung.events.metric import LogsDropped, LogsPrinted
from rung.events.trial import RunSpec

SPEC = RunSpec(
    experiment_id="e",
    trial_id="e.0",
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
SATURATED = -1
"""A outbox of so many bytes is full even when nothing waits in it."""


@contextlib.asynccontextmanager
async def _outbox(folder: Path, pending_bytes_max: int = 1 << 20) -> AsyncIterator[Outbox]:
    outbox = Outbox(folder / "spool.db", pending_bytes_max=pending_bytes_max)
    outbox.open("a", "a")
    try:
        yield outbox
    finally:
        await outbox.close()


def _print_all(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


async def test_what_is_dropped_waits_for_nothing(tmp_path: Path) -> None:
    """A run whose log is full prints on while the outbox takes no more; each line is counted."""
    async with _outbox(tmp_path, SATURATED) as outbox:
        event_buffer = EventBuffer(outbox, SPEC, 4096)
        capture = LogCapture(event_buffer, lambda lines: event_buffer.printed_out(lines, 0))
        lines = b"".join(b"%d %s\n" % (number, b"x" * 100) for number in range(40_000))
        try:
            async with asyncio.timeout(20):
                await asyncio.to_thread(_print_all, capture.write_end, lines)
                capture.started()
                await capture.ended()
        finally:
            capture.close()
        event_buffer.close()
        await outbox.durable(outbox.last)
        facts = [decode(item.draft.value).data for item in await outbox.read(0, 1000)]
    kept = [line for it in facts if isinstance(it, LogsPrinted) for line in it.lines]
    (dropped,) = (it for it in facts if isinstance(it, LogsDropped))
    assert kept[0].text.startswith("0 ")
    assert kept[-1].text.startswith("39999 ")
    assert dropped.lines == 40_001 - len(kept)  # one line says that the log is full


async def test_what_may_be_stored_waits_for_room(tmp_path: Path) -> None:
    """A run whose log has room is not read further while the outbox takes no more."""
    async with _outbox(tmp_path, SATURATED) as outbox:
        event_buffer = EventBuffer(outbox, SPEC)
        taken = asyncio.Event()

        def take(lines: list[str]) -> None:
            event_buffer.printed_out(lines, 0)
            taken.set()

        capture = LogCapture(event_buffer, take)
        os.write(capture.write_end, b"one\n")
        async with asyncio.timeout(20):
            await taken.wait()
        taken.clear()
        os.write(capture.write_end, b"two\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await taken.wait()
        assert not taken.is_set()
        capture.started()
        capture.close()
        event_buffer.close()


async def test_line_by_line_gathers(tmp_path: Path) -> None:
    """A process that prints lines without end, one at a time, does not wake the agent for each."""
    async with _outbox(tmp_path) as outbox:
        reads: list[list[str]] = []
        capture = LogCapture(outbox, reads.append)
        began = time.monotonic()
        for number in range(3000):
            os.write(capture.write_end, b"%d\n" % number)
            await asyncio.sleep(0)
        took_s = time.monotonic() - began
        capture.started()
        async with asyncio.timeout(20):
            await capture.ended()
    assert [int(line) for lines in reads for line in lines] == list(range(3000))
    assert len(reads) < 1000 * (took_s + 0.2)


async def test_stdout_comes_before_what_stderr_said_after_it(tmp_path: Path) -> None:
    """Also when stdout was left alone for a moment because it said much."""
    async with _outbox(tmp_path) as outbox:
        said: list[str] = []
        stdout = LogCapture(outbox, said.extend)
        stderr = LogCapture(outbox, said.extend, after=stdout)
        for number in range(200):
            os.write(stdout.write_end, b"%d\n" % number)
            await asyncio.sleep(0)
        os.write(stdout.write_end, b"last\n")
        os.write(stderr.write_end, b"Traceback\n")
        for capture in (stdout, stderr):
            capture.started()
        async with asyncio.timeout(20):
            await asyncio.gather(stdout.ended(), stderr.ended())
    assert said[-2:] == ["last", "Traceback"]
