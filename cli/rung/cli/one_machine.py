"""All of Rung in one process and one agent beside it: the composition root of `rung up`."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from rung.agent.config import EXIT_REFUSED
from rung.checkpoint_gc.service import serve as serve_checkpoint_gc
from rung.cli.data_folder import DataFolder, DataFolderError
from rung.cli.deciders import audit_all
from rung.gateway.service import serve as serve_gateway
from rung.host.journal import bind
from rung.host.observed_ledger import ObservedLedger
from rung.host.observed_store import ObservedStore
from rung.host.vital import VITALS
from rung.ledger import SqliteLedger
from rung.metrics.service import serve as serve_metrics
from rung.metrics.store import SeriesStore
from rung.objects import FolderStore
from rung.scheduler.service import serve as serve_scheduler
from rung.searcher.service import serve as serve_searcher

_AGENT_STOP_S: Final = 20.0
_AGENT_RETRY_S: Final = 1.0

_log = structlog.get_logger()


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback interface; port 0 takes a free one.

    Raises:
        DataFolderError: the port is in use or not allowed.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise DataFolderError(
            f"port {port} cannot be used ({error.strerror}): choose another with --port, "
            "or --port 0 for a free one"
        ) from error
    listener.listen()
    return listener


async def run(
    folder: DataFolder,
    listener: socket.socket,
    slots: int | None,
    isolation: str,
    started: Callable[[], None],
) -> None:
    """Run every service and the agent until SIGTERM or SIGINT, then go down in good order.

    Args:
        folder: held by this process.
        listener: where the gateway answers.
        slots: how many the agent offers; as many as the machine has, if not given.
        isolation: of the trials, as the agent's `--isolation`.
        started: called once the gateway answers.

    Raises:
        RungError: the folder's ledger or series cannot be opened, a service failed, or the agent
            is refused for good.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ledger = ObservedLedger(await SqliteLedger.open(folder.ledger))
    store = ObservedStore(FolderStore(folder.objects))
    series = SeriesStore(folder.series, ledger_id=ledger.id)
    bind(ledger=ledger.id)

    try:
        async with asyncio.TaskGroup() as group:
            services = [
                group.create_task(work)
                for work in (
                    serve_searcher(ledger),
                    serve_scheduler(ledger),
                    serve_checkpoint_gc(ledger, store),
                    serve_metrics(ledger, series),
                    serve_gateway(
                        ledger,
                        store,
                        listener=listener,
                        token=folder.token,
                        series=series,
                        audit=partial(audit_all, ledger),
                        started=started,
                    ),
                )
            ]
            async with _agent(folder, slots, isolation, ended=stop):
                await stop.wait()
                VITALS.stopping = True
            for service in services:
                service.cancel()
    finally:
        await series.close()
        await ledger.close()


@contextlib.asynccontextmanager
async def _agent(
    folder: DataFolder, slots: int | None, isolation: str = "auto", *, ended: asyncio.Event
) -> AsyncIterator[None]:
    """Keep one agent running: started again when it dies, stopped at the end.

    Raises:
        DataFolderError: no start will mend it; `ended` is set then.
    """
    with contextlib.ExitStack() as pipe:
        reading, writing = os.pipe()
        pipe.callback(os.close, reading)
        pipe.callback(os.close, writing)
        keeper = asyncio.create_task(_keep_agent(folder, slots, isolation, reading))
        keeper.add_done_callback(lambda _: ended.set())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper


async def _keep_agent(
    folder: DataFolder, slots: int | None, isolation: str, parent_pipe: int
) -> None:
    while True:
        try:
            process = await _start_agent(folder, slots, isolation, parent_pipe)
        except OSError as error:  # no memory, no space for its log
            _log.error("agent not started", error=str(error), starting_again_in_s=_AGENT_RETRY_S)
            await asyncio.sleep(_AGENT_RETRY_S)
            continue
        try:
            code = await process.wait()
            if code == EXIT_REFUSED:
                raise _refusal(folder.log / "agent.log")
            _log.error("agent died", exit_code=code, starting_again_in_s=_AGENT_RETRY_S)
            await asyncio.sleep(_AGENT_RETRY_S)
        finally:
            await _stop(process)


async def _start_agent(
    folder: DataFolder, slots: int | None, isolation: str, parent_pipe: int
) -> asyncio.subprocess.Process:
    """Start the agent; it notices by the pipe's end of file when this process is gone."""
    arguments = ["--ledger", str(folder.ledger), "--objects", folder.objects.as_uri()]
    arguments += ["--folder", str(folder.agent), "--parent-pipe", str(parent_pipe)]
    arguments += ["--isolation", isolation, "--hide", str(folder.path)]
    if slots is not None:
        arguments += ["--slots", str(slots)]
    with (folder.log / "agent.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rung.agent",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[parent_pipe],
            cwd=Path("/"),
        )


def _refusal(log: Path) -> DataFolderError:
    """Return what an agent said at its end, as an error."""
    said = log.read_text(errors="replace").strip().rpartition("\n")[2].removeprefix("Error: ")
    return DataFolderError(f"{said}; {log} has more")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_AGENT_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
