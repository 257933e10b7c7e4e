"""All of Rung in one process and one agent beside it: the composition root of `rung up`."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from rung.agent.outbox.outbox_file import SET_ASIDE as OUTBOX_SET_ASIDE
from rung.agent.settings import EXIT_REFUSED
from rung.cli.local.data_folder import DataFolder, DataFolderError
from rung.cli.local.disk_use import DiskMeter
from rung.cli.local.up import UpOptions
from rung.cli.operations.components import READERS, audit_all
from rung.cli.operations.service import tables
from rung.events import UndecodableEvent, decode, partition_of, topic
from rung.events.allocation import AgentJoined, AgentResumed
from rung.gateway.context import Parts
from rung.gateway.requests.after import HEADER, Positions, token_of
from rung.gateway.service import serve as serve_gateway
from rung.gateway.settings import DAY_S
from rung.gateway.settings import Settings as GatewaySettings
from rung.ledger import Ledger, SqliteLedger
from rung.ledger.export.import_record import check_imported
from rung.ledger.seals import FILE as KEY_FILE
from rung.ledger.seals import SealKey
from rung.ledger.sqlite.remote_append import serve_appends
from rung.metrics.clickhouse.embedded import SET_ASIDE as SERIES_SET_ASIDE
from rung.metrics.recovery import Recovery
from rung.metrics.service import NAME as METRICS
from rung.metrics.settings import Settings as MetricsSettings
from rung.metrics.store import SeriesStore
from rung.runtime.health.checks import HEALTH
from rung.runtime.health.disk import Disk
from rung.runtime.levels import raise_level
from rung.runtime.logs import bind
from rung.runtime.metrics.observed_ledger import ObservedLedger
from rung.runtime.metrics.observed_store import ObservedStore
from rung.runtime.sealing.anchor import Anchor
from rung.runtime.sealing.sealer import Sealer, sealing
from rung.runtime.service import serve
from rung.scheduler.policies import policy_of
from rung.secrets.master_key import FILE as SECRETS_FILE
from rung.secrets.master_key import load_or_create
from rung.storage import FolderStore
from rung.storage.key import INCOMING
from rung.subscription.address import rule_of
from rung.webhooks.service import NAME as WEBHOOKS
from rung.webhooks.service import components as webhooks
from rung.webhooks.settings import Settings as DeliverySettings
from rung.webhooks.settings import mail_of_url

_AGENT_STOP_S: Final = 20.0
_AGENT_RETRY_S: Final = 1.0
_APPENDED_S: Final = 10.0
"""How long what an agent handed over before it died is waited for."""
_POOL: Final = "default"
_DEATHS_MAX: Final = 3
"""An agent that fails so often before it joined once will not join."""
_LOOK_S: Final = 0.05

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


async def run(  # noqa: PLR0913 - what it is started with
    folder: DataFolder,
    listener: socket.socket,
    options: UpOptions,
    started: Callable[[], None],
    *,
    ready: Callable[[list[str]], None],
    umask: int,
) -> None:
    """Run every service and the agent until SIGTERM or SIGINT, then go down in good order.

    Args:
        folder: held by this process.
        listener: where the gateway answers, besides the folder's Unix socket.
        options: how it is started.
        started: called once the gateway answers.
        ready: called once all services have caught up, the series are open or known not to be, the
            agent has joined, and the gateway shows its slots; with what there is to warn of.
        umask: of trial processes, as the user has it.

    Raises:
        RungError: the folder's ledger cannot be opened, a service failed, or the agent is refused
            for good.
    """
    delivery = _delivery(options)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    local = folder.listen()
    key = SealKey.load_or_create(folder.path / KEY_FILE)
    secrets_key = load_or_create(folder.path / SECRETS_FILE)
    ledger = ObservedLedger(await SqliteLedger.open(folder.ledger))
    sealer = Sealer(ledger, key, anchor=Anchor(options.anchor) if options.anchor else None)
    store = ObservedStore(FolderStore(folder.objects))
    series = SeriesStore(folder.series, ledger_id=ledger.id)
    limits = MetricsSettings(
        logs_days=options.logs_keep_days, logs_total_bytes=options.logs_total_bytes
    )
    recovery = Recovery(ledger, series, limits, key=key)
    bind(ledger=ledger.id)
    disk = Disk([folder.ledger, folder.objects / INCOMING])
    checks = contextlib.ExitStack()
    checks.callback(disk.close)
    checks.enter_context(HEALTH.check("disk", disk.look))

    def warnings() -> list[str]:
        series_warnings = filter(None, [recovery.problem, series.warning])
        return [*folder.warnings, *series_warnings, *_set_aside(folder)]

    joins = await _Joins.from_now(ledger)
    parts = {**tables(store), WEBHOOKS: webhooks(store, delivery, secrets_key)}

    async def tell() -> None:
        await recovery.settled.wait()
        joined = await joins.first()
        await _caught_up()
        await _shown(folder, listener, token_of(ledger.id, joined))
        ready(warnings())

    try:
        await check_imported(ledger)
        await raise_level(ledger)
        async with sealing(sealer), asyncio.TaskGroup() as group:
            services = [
                group.create_task(work)
                for work in (
                    serve(ledger, tuple(chain.from_iterable(parts.values()))),
                    recovery.run(),
                    serve_gateway(
                        ledger,
                        store,
                        listener=listener,
                        local=local,
                        token=folder.token,
                        parts=Parts(
                            series,
                            partial(audit_all, ledger, keys=key.trusted),
                            policy_of,
                            READERS,
                            warnings,
                            DiskMeter(folder).measure,
                        ),
                        started=started,
                        folder=folder.projections,
                        secrets_key=secrets_key,
                        settings=GatewaySettings(
                            webhooks=delivery.rule,
                            deletion_delay=options.deletion_delay_days * DAY_S,
                        ),
                    ),
                    tell(),
                )
            ]
            async with _agent(
                ledger, folder, options, ended=stop, joined=joins.joined, umask=umask
            ):
                await stop.wait()
                HEALTH.stopping = True
            for service in services:
                service.cancel()
    finally:
        checks.close()
        await series.close()
        await ledger.close()


def _delivery(options: UpOptions) -> DeliverySettings:
    """Return how webhooks deliver.

    Raises:
        DataFolderError: an option cannot be so.
    """
    try:
        return DeliverySettings(
            rule=rule_of(options.webhooks_allow_network, allow_http=options.webhooks_allow_http),
            mail=mail_of_url(options.smtp, options.mail_from) if options.smtp else None,
        )
    except ValueError as error:
        raise DataFolderError(f"webhooks: {error}") from error


class _Joins:
    """Whether the agent has joined its pool, or gone on there, since this process started."""

    def __init__(self, ledger: Ledger, partition: int, position: int) -> None:
        self._ledger = ledger
        self._partition = partition
        self._position = position
        self.joined: Final = asyncio.Event()

    @classmethod
    async def from_now(cls, ledger: Ledger) -> "_Joins":
        """Look at what comes behind the end of the pool's facts."""
        partition = partition_of(_POOL, ledger.partitions(topic.POOLS))
        return cls(ledger, partition, await ledger.end(topic.POOLS, partition))

    async def first(self) -> Positions:
        """Return once an agent has joined or gone on, with the place of that fact."""
        async for records in self._ledger.follow(topic.POOLS, self._partition, self._position):
            for record in records:
                with contextlib.suppress(UndecodableEvent):
                    if isinstance(decode(record.value).data, AgentJoined | AgentResumed):
                        self.joined.set()
                        return {(topic.POOLS, self._partition): record.position}
        raise AssertionError("a ledger is followed for ever")


async def _shown(folder: DataFolder, listener: socket.socket, after: str) -> None:
    """Return once the gateway shows what a token of `Rung-After` stands for."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1/status"
    headers = {"Authorization": f"Bearer {folder.token}", HEADER: after}
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url, headers=headers) as answer:
                    if answer.status == HTTPStatus.OK:
                        return
            await asyncio.sleep(_LOOK_S)


async def _caught_up() -> None:
    """Return once every service has folded what the ledger held when it started.

    Curves and logs may come later: they are rebuilt while trials train; and so may webhooks.
    """
    while True:
        behind = await HEALTH.behind()
        if all(line.startswith((f"{METRICS}/", f"{WEBHOOKS}-")) for line in behind):
            return
        await asyncio.sleep(_LOOK_S)


def _set_aside(folder: DataFolder) -> list[str]:
    """Return a sentence for each damaged file or folder that was set aside and is still there."""
    return [
        f"{path} was not usable and was set aside; {what}. Remove it when it is no longer needed"
        for place, mark, what in (
            (
                folder.path,
                f"*.{SERIES_SET_ASIDE}-*",
                "its contents are rebuilt from the ledger",
            ),
            (folder.agent, f"*.{OUTBOX_SET_ASIDE}-*", "what the ledger lacks is trained again"),
        )
        for path in sorted(place.glob(mark))
    ]


@contextlib.asynccontextmanager
async def _agent(  # noqa: PLR0913 - what it is started with
    ledger: Ledger,
    folder: DataFolder,
    options: UpOptions,
    *,
    ended: asyncio.Event,
    joined: asyncio.Event,
    umask: int,
) -> AsyncIterator[None]:
    """Keep one agent running: started again when it dies, stopped at the end.

    What it has for the ledger this process appends: so that shares transactions with what follows.

    Raises:
        DataFolderError: no start will mend it, or it fails again and again and has not joined
            yet; `ended` is set then.
    """
    start = partial(_start_agent, folder, options, umask)
    keeper = asyncio.create_task(_keep_agent(ledger, folder, start, joined))
    keeper.add_done_callback(lambda _: ended.set())
    try:
        yield
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper


async def _keep_agent(
    ledger: Ledger,
    folder: DataFolder,
    start: Callable[[socket.socket], Awaitable[asyncio.subprocess.Process]],
    joined: asyncio.Event,
) -> None:
    failures = 0
    while True:
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    process = await start(theirs)
            except OSError as error:  # no memory, no space for its log
                wait_s = _AGENT_RETRY_S
                _log.error("agent not started", error=str(error), starting_again_in_s=wait_s)
                await asyncio.sleep(wait_s)
                continue
            appending = asyncio.create_task(serve_appends(ledger, ours))
            try:
                code = await process.wait()
                failures += code > 0  # not where a signal ended it
                if code == EXIT_REFUSED or (failures >= _DEATHS_MAX and not joined.is_set()):
                    raise _refusal(folder.log / "agent.log")
                _log.error("agent died", exit_code=code, starting_again_in_s=_AGENT_RETRY_S)
                await asyncio.sleep(_AGENT_RETRY_S)
            finally:
                await _stop(process)
                # What it handed over goes before what the next one does.
                await asyncio.wait([appending], timeout=_APPENDED_S)
                appending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await appending


async def _start_agent(
    folder: DataFolder, options: UpOptions, umask: int, connection: socket.socket
) -> asyncio.subprocess.Process:
    """Start the agent; it notices by the connection's end when this process is gone."""
    arguments = ["--ledger", str(folder.ledger), "--objects", folder.objects.as_uri()]
    arguments += ["--folder", str(folder.agent), "--parent", str(connection.fileno())]
    arguments += ["--secrets-key", str(folder.path / SECRETS_FILE)]
    arguments += ["--keep-trials", "--hide", str(folder.path), *options.agent_arguments()]
    with (folder.log / "agent.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rung.agent",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[connection.fileno()],
            cwd=Path("/"),
            umask=umask,  # of its trials; the agent's own is stricter
        )


def _refusal(log: Path) -> DataFolderError:
    """Return what an agent said at its end, as an error."""
    said = log.read_text(errors="replace").strip().rpartition("\n")[2].removeprefix("Error: ")
    if not said:
        return DataFolderError(
            f"the agent ended and could not write why to {log}: is the disk full?"
        )
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
