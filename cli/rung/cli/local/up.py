"""`rung up`: all of Rung on one machine."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

import click

from rung.agent.size import Size
from rung.cli.local.data_folder import (
    DataFolder,
    Server,
    default_path,
    is_stopped,
    made,
    private,
    read_server,
)
from rung.cli.local.up_options import UpOptions
from rung.cli.output import print_json_line
from rung.events import RungError

DEFAULT_PORT: Final = 8080
_SAY_S: Final = 15.0
"""How often to say that it is still starting."""


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Data folder [RUNG_DATA, ~/.rung].")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port on the loopback interface; 0 takes a free one.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1024),
    help="Slots of the CPU to offer, and no GPU. [a slot a GPU, or else a slot a core]",
)
@click.option(
    "--isolation",
    type=click.Choice(["auto", "namespaces", "off"]),
    default="auto",
    show_default=True,
    help="What keeps trials from acting as Rung and as each other; auto: namespaces if they work.",
)
@click.option(
    "--keep-token",
    is_flag=True,
    help="Go on letting in those who have the token of the last start. [a new one at each start]",
)
@click.option(
    "--anchor",
    metavar="FILE|URL",
    envvar="RUNG_ANCHOR",
    help="Keep the signed heads of the seals there as well: lines appended to a file, or POST.",
)
@click.option(
    "--logs-max-bytes",
    type=Size(),
    envvar="RUNG_LOGS_MAX_BYTES",
    help="How much of a run's log is stored, whatever an experiment asks for. [64MiB]",
)
@click.option(
    "--logs-keep-days",
    type=click.IntRange(0, 36_500),
    envvar="RUNG_LOGS_KEEP_DAYS",
    help="Days after which printed lines are deleted; 0: never. [as it was set before]",
)
@click.option(
    "--logs-total-bytes",
    type=Size(),
    envvar="RUNG_LOGS_TOTAL_BYTES",
    help="Delete the oldest logs where the text of all has more bytes, as 10GiB. [no limit]",
)
@click.option("--detach", is_flag=True, help="Return once everything runs.")
@click.option("--json", "as_json", is_flag=True, help="Print address, data folder and process.")
def up(
    data: Path | None, anchor: str | None, *, detach: bool, as_json: bool, **options: Any
) -> None:
    """Start Rung on this machine: services, ledger, agent and page.

    What was damaged and can be rebuilt is set aside; warnings about it go to standard error.
    """
    path = (data or default_path()).expanduser().absolute()
    if anchor and "://" not in anchor:
        anchor = str(Path(anchor).expanduser().absolute())
    chosen = UpOptions(anchor=anchor, **options)
    if detach:
        _say(path, _detach(path, chosen), as_json=as_json)
    else:
        _serve(path, chosen, as_json=as_json)


def _say(path: Path, server: Server, *, as_json: bool) -> None:
    """Print how the server is reached; the token belongs to the page's address, not to logs."""
    for warning in server.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if as_json:
        print_json_line({"url": server.url, "data": str(path), "pid": server.pid})
    else:
        click.echo(f"Rung runs on {path}; the page: {server.url}/#token={server.token}")


def _serve(path: Path, options: UpOptions, *, as_json: bool) -> None:
    # Imported here, so that `rung --help` does not pay for the services.
    from rung.cli.local.one_machine import listen, run  # noqa: PLC0415 - see above
    from rung.runtime.health.checks import HEALTH  # noqa: PLC0415 - see above
    from rung.runtime.http.limits import raise_open_files  # noqa: PLC0415 - see above
    from rung.runtime.logs import log_to  # noqa: PLC0415 - see above

    folder = DataFolder.open(path, keep_token=options.keep_token)
    try:
        with private() as umask:
            listener = listen(options.port)
            with made(path):
                log = (folder.log / "rung.log").open("a", buffering=1)
            log_to(log, service="rung")
            raise_open_files()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"

            def started() -> None:
                folder.announce(url, ready=False)

            def ready(warnings: list[str]) -> None:
                folder.announce(url, ready=True, warnings=warnings)
                server = Server(url, folder.token, os.getpid(), ready=True, warnings=warnings)
                _say(path, server, as_json=as_json)
                if not as_json:
                    click.echo("Ctrl-C, or `rung down`, stops it; nothing is lost.")

            with HEALTH.measured("rung"):
                asyncio.run(run(folder, listener, options, started, ready=ready, umask=umask))
    except BaseExceptionGroup as group:
        # A task group collects what its services raised; people want the first reason.
        refused = group.subgroup(RungError) or group.subgroup(OSError)
        if refused is None:
            raise
        raise _first(refused) from group
    finally:
        folder.close()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _for_its_owner(file: Path) -> IO[bytes]:
    """Open a file that its owner alone may read, whoever could before: the token goes there."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "wb")


def _detach(path: Path, options: UpOptions) -> Server:
    """Start `rung up` in a session of its own and wait until it runs, however long it takes.

    Killed while it folds a large ledger, it would begin anew the next time.

    Raises:
        RungError: it ended instead, with what it printed; or something stopped it.
    """
    command = [sys.executable, "-m", "rung.cli", "up", "--data", str(path), *options.arguments()]
    said = path / "up.out"
    with made(path):
        output = _for_its_owner(said)
    with output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    began = told = time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(RungError):
            server = read_server(path)
            if server.pid == process.pid and server.ready:
                return server
        if is_stopped(process.pid):
            raise RungError(
                f"`rung up` (process {process.pid}) was stopped while it started:"
                f" `kill -CONT {process.pid}` lets it go on, `rung down --data {path}` ends it"
            )
        if time.monotonic() - told > _SAY_S:
            told = time.monotonic()
            click.echo(
                f"Rung is starting for {told - began:.0f} s now (process {process.pid}): a large"
                f" ledger takes its time. {path}/log/rung.log says more; `rung down --data {path}`"
                " ends it.",
                err=True,
            )
        time.sleep(0.05)
    raise RungError(
        said.read_text(errors="replace").strip().removeprefix("Error: ")
        or f"`rung up` ended with exit code {process.returncode} and could not say why: is the"
        f" disk of {path} full? Without --detach it tells the terminal"
    )
