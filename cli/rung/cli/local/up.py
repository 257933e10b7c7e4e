"""`rung up` and `rung down`: all of Rung on one machine."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import click

from rung.agent.forkserver.client import left_behind
from rung.agent.size import Size
from rung.cli.local.data_folder import (
    DataFolder,
    Server,
    check_owner,
    default_path,
    holder_of,
    is_running,
    is_stopped,
    made,
    private,
    read_server,
)
from rung.cli.output import print_json_line
from rung.events import RungError

DEFAULT_PORT: Final = 8080
_SAY_S: Final = 15.0
"""Interval of messages during a long start."""
_STOP_S_MAX: Final = 60.0


class UpOptions(NamedTuple):
    """The options of `rung up`; None where one was not given."""

    port: int
    slots: int | None = None
    isolation: str = "auto"
    """Of trials, as the agent's `--isolation`."""
    unattended: float | None = None
    """Seconds that trials train on without an agent; 0: they end with it."""
    keep_token: bool = False
    anchor: str | None = None
    """A file or an URL that gets the signed heads of the seals."""
    logs_max_bytes: int | None = None
    """Stored bytes of a run's log."""
    logs_keep_days: int | None = None
    """Days after which log lines are deleted; 0: never."""
    logs_total_bytes: int | None = None
    """Bytes of all log lines above which the oldest logs are deleted."""
    webhooks_allow_network: tuple[str, ...] = ()
    """Networks that webhooks may lead to although they are not public."""
    webhooks_allow_http: bool = False
    """Whether webhooks may have addresses without encryption."""
    smtp: str | None = None
    """The server of outgoing e-mail; it has a password."""
    mail_from: str = ""
    deletion_delay_days: float = 3.0
    """Days in which the deletion of an experiment can be taken back."""
    frameworks_idle: float = 900.0
    """Seconds after which imported frameworks that no trial uses leave the memory."""

    def arguments(self) -> list[str]:
        """Return them as arguments of `rung up`."""
        valued = {
            "--anchor": self.anchor,
            "--logs-keep-days": self.logs_keep_days,
            "--logs-total-bytes": self.logs_total_bytes,
            "--deletion-delay-days": self.deletion_delay_days,
        }
        given = [text for name, value in valued.items() for text in _given(name, value)]
        token = ["--keep-token"] if self.keep_token else []
        for network in self.webhooks_allow_network:
            given += ["--webhooks-allow-network", network]
        given += ["--webhooks-allow-http"] if self.webhooks_allow_http else []
        return ["--port", str(self.port), *self.agent_arguments(), *given, *token]

    def environment(self) -> dict[str, str]:
        """Return those that no list of processes is to show, as variables."""
        given = {"RUNG_SMTP": self.smtp or "", "RUNG_MAIL_FROM": self.mail_from}
        return {name: value for name, value in given.items() if value}

    def agent_arguments(self) -> list[str]:
        """Return those that the agent has, too, as its arguments."""
        valued = {
            "--isolation": self.isolation,
            "--slots": self.slots,
            "--unattended": self.unattended,
            "--logs-max-bytes": self.logs_max_bytes,
            "--frameworks-idle": self.frameworks_idle,
        }
        return [text for name, value in valued.items() for text in _given(name, value)]


def _given(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


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
    help="Isolation of trials from Rung and from each other; auto: namespaces if they work.",
)
@click.option(
    "--unattended",
    type=click.FloatRange(0),
    envvar="RUNG_UNATTENDED",
    metavar="SECONDS",
    help="How long trials train on while Rung does not run; then they checkpoint and end. [3600]",
)
@click.option(
    "--keep-token",
    is_flag=True,
    help="Keep the token of the last start valid. [a new one at each start]",
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
    help="Limit of the stored log of a run; an experiment may set a lower one. [64MiB]",
)
@click.option(
    "--logs-keep-days",
    type=click.IntRange(0, 36_500),
    envvar="RUNG_LOGS_KEEP_DAYS",
    help="Days after which log lines are deleted; 0: never. [as it was set before]",
)
@click.option(
    "--logs-total-bytes",
    type=Size(),
    envvar="RUNG_LOGS_TOTAL_BYTES",
    help="Delete the oldest logs where the text of all has more bytes, as 10GiB. [no limit]",
)
@click.option(
    "--webhooks-allow-network",
    multiple=True,
    envvar="RUNG_WEBHOOKS_ALLOW_NETWORK",
    metavar="CIDR",
    help="Network that webhooks may lead to although it is not public; can be repeated.",
)
@click.option(
    "--webhooks-allow-http",
    is_flag=True,
    envvar="RUNG_WEBHOOKS_ALLOW_HTTP",
    help="Webhooks may have addresses without encryption.",
)
@click.option("--smtp", envvar="RUNG_SMTP", help="smtps://USER:PASSWORD@HOST, for e-mail.")
@click.option("--mail-from", envvar="RUNG_MAIL_FROM", default="", help="Sender of e-mail.")
@click.option(
    "--deletion-delay-days",
    type=click.FloatRange(0, 3_650),
    default=3.0,
    show_default=True,
    envvar="RUNG_DELETION_DELAY_DAYS",
    help="How long `rung restore` brings back an experiment that was deleted; 0: not at all.",
)
@click.option(
    "--frameworks-idle",
    type=click.FloatRange(0),
    default=900.0,
    show_default=True,
    envvar="RUNG_FRAMEWORKS_IDLE",
    metavar="SECONDS",
    help="How long imported frameworks stay in memory while no trial uses them; unused, a minute.",
)
@click.option("--detach", is_flag=True, help="Return once everything runs.")
@click.option("--json", "as_json", is_flag=True, help="Print address, data folder and process.")
@click.option("--parent", type=int, hidden=True, help="Stop when this pipe closes: FD.")
def up(
    data: Path | None,
    anchor: str | None,
    parent: int | None,
    *,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Start Rung on this machine: services, ledger, agent and page.

    Damaged files that can be rebuilt are set aside, with a warning on standard error.
    """
    path = (data or default_path()).expanduser().absolute()
    if anchor and "://" not in anchor:
        anchor = str(Path(anchor).expanduser().absolute())
    chosen = UpOptions(anchor=anchor, **options)
    if parent is not None:
        threading.Thread(target=_stop_after, args=[parent], daemon=True).start()
    if detach:
        _say(path, start_detached(path, chosen), as_json=as_json)
    else:
        _serve(path, chosen, as_json=as_json)


def _say(path: Path, server: Server, *, as_json: bool) -> None:
    """Print the address of the page with its token, or JSON without the token."""
    for warning in server.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if as_json:
        print_json_line({"url": server.url, "data": str(path), "pid": server.pid})
    else:
        click.echo(f"Rung runs on {path}; the page: {server.url}/#token={server.token}")


def _serve(path: Path, options: UpOptions, *, as_json: bool) -> None:
    # Imported here, so that `rung up --help` does not import the services.
    from rung.cli.local.one_machine import listen, run  # noqa: PLC0415 - see above
    from rung.runtime.garbage import short_collections  # noqa: PLC0415 - see above
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
                    click.echo("Ctrl-C, or `rung down`, stops it; trials train on for a while.")

            with HEALTH.measured("rung"), short_collections():
                asyncio.run(run(folder, listener, options, started, ready=ready, umask=umask))
    except BaseExceptionGroup as group:
        # The first error of the services' task group is the cause of the others.
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
    """Open a file with the owner's permissions alone, because the token is written to it."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "wb")


def _stop_after(parent: int) -> None:
    """Stop this process when the last process that writes to a pipe is gone."""
    while os.read(parent, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def start_detached(path: Path, options: UpOptions, parent: int | None = None) -> Server:
    """Start `rung up` in a session of its own and wait until it runs, without a time limit.

    A start that is killed while it folds a large ledger would only have to start again.

    Args:
        path: the data folder.
        options: of `rung up`.
        parent: a pipe's end to read from; `rung up` stops when it closes.

    Raises:
        RungError: it ended, with its output as the message; or it was stopped by a signal.
    """
    command = [sys.executable, "-m", "rung.cli", "up", "--data", str(path), *options.arguments()]
    command += [] if parent is None else ["--parent", str(parent)]
    printed = path / "up.out"
    with made(path):
        output = _for_its_owner(printed)
    with output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **options.environment()},
            pass_fds=[] if parent is None else [parent],
        )
    began = informed = time.monotonic()
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
        if time.monotonic() - informed > _SAY_S:
            informed = time.monotonic()
            click.echo(
                f"Rung has been starting for {informed - began:.0f} s (process {process.pid}): a"
                f" large ledger takes its time. {path}/log/rung.log has more; `rung down --data"
                f" {path}` ends it.",
                err=True,
            )
        time.sleep(0.05)
    raise RungError(
        printed.read_text(errors="replace").strip().removeprefix("Error: ")
        or f"`rung up` ended with exit code {process.returncode} and could not say why: is the"
        f" disk of {path} full? Without --detach the terminal shows it"
    )


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Data folder [RUNG_DATA, ~/.rung].")
@click.option("--kill", is_flag=True, help="End the trials at once, too.")
@click.option("--json", "as_json", is_flag=True, help="Print data folder, process, and trials.")
def down(data: Path | None, *, kill: bool, as_json: bool) -> None:
    """Stop the Rung of a data folder.

    Its trials train on for an hour (`rung up --unattended`): the next `rung up` takes them over,
    and nothing is trained again. If none comes, they checkpoint and end. With --kill they end now,
    and are trained again from their last checkpoints at the next start.
    """
    path = (data or default_path()).expanduser().absolute()
    check_owner(path)
    pid = holder_of(path)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself a moment ago
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # one that is stopped acts on no signal before
        deadline = time.monotonic() + _STOP_S_MAX
        while is_running(path):
            if time.monotonic() > deadline:
                raise RungError(
                    f"process {pid} does not stop; see {path}/log/rung.log, "
                    f"or end it with `kill -9 {pid}`: nothing is lost"
                )
            time.sleep(0.05)
    left = left_behind(path / "agent", kill=kill)
    if as_json:
        trials = {"trials": len(left.runs), "trials_end_in_s": round(left.left_s)}
        print_json_line({"data": str(path), "pid": pid, **trials})
        return
    click.echo(f"Rung {'did not run' if pid is None else 'no longer runs'} on {path}.")
    if left.runs and not kill:
        number = len(left.runs)
        click.echo(
            f"{number} {'trial trains' if number == 1 else 'trials train'} on for"
            f" {left.left_s / 60:.0f} min at most: `rung up --data {path}` takes over,"
            f" `rung down --kill --data {path}` ends {'it' if number == 1 else 'them'}."
        )
