"""Options that most commands share: the installation that is addressed, and JSON as output."""

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from rung.cli.local.data_folder import default_path
from rung.cli.output import printable
from rung.client import AsyncClient, Location, locate
from rung.events import RungError

T = TypeVar("T")

PATIENCE_S: Final = 8.0
"""How long a command retries while connections break; a refused connection is not retried.

Longer than the 5 s after which a gateway answers that it has not folded an earlier write yet, and
the 2 s that it then asks to wait: such an answer is worth another attempt.
"""
PATIENCE_FOLLOWING_S: Final = 60.0
"""The same for commands that follow an experiment: they outlast a restart of the server."""
TIMEOUT_S: Final = 120.0
"""How long a command waits for one answer; audits take long."""
_COMPLETION_S: Final = 2.0
"""How long completion in the shell waits for the server."""


class Link(NamedTuple):
    """The installation that a command addresses, and the format of its output."""

    data: Path
    url: str | None
    token: str | None
    json: bool
    """Whether to print JSON."""

    def client(self, patience_s: float = PATIENCE_S, timeout_s: float = TIMEOUT_S) -> AsyncClient:
        """Return a client of it.

        Args:
            patience_s: how long it retries while there is no answer.
            timeout_s: how long it waits for one answer.
        """
        return AsyncClient(locate=self.locate, patience_s=patience_s, timeout_s=timeout_s)

    def locate(self) -> Location:
        """Locate the server by its address, or by the present contents of the data folder."""
        return locate(self.data, self.url, self.token)


def linked(command: Callable[..., Any], *, address: str = "--url") -> Callable[..., Any]:
    """Add --json, --data, --url and --token to a command, which gets them as `link`.

    A coroutine function is run in an event loop.

    Args:
        command: to be run.
        address: another name of --url, of a command whose own --url leads elsewhere.
    """
    run = asynchronous(command) if inspect.iscoroutinefunction(command) else command

    @click.option("--json", "as_json", is_flag=True, help="Print JSON, with the API's keys.")
    @click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="RUNG_DATA",
        help="Data folder of the Rung that is meant. [RUNG_DATA, ~/.rung]",
    )
    @click.option(
        address, "url", envvar="RUNG_URL", help="Its address, in place of --data. [RUNG_URL]"
    )
    @click.option("--token", envvar="RUNG_TOKEN", help="What lets you in there. [RUNG_TOKEN]")
    @functools.wraps(command)
    def wrapped(
        *arguments: Any,
        as_json: bool,
        data: Path | None,
        url: str | None,
        token: str | None,
        **options: Any,
    ) -> Any:
        folder = (data or default_path()).expanduser().absolute()
        # --data on the command line has precedence over an address in the environment.
        source = click.get_current_context().get_parameter_source
        named = click.core.ParameterSource.COMMANDLINE
        if source("data") is named and source("url") is not named:
            url = None
        link = Link(folder, url or None, token or None, as_json)
        return run(*arguments, link=link, **options)

    return wrapped


def asynchronous(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Return a function that runs a coroutine function in an event loop."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> T:
        return asyncio.run(command(*arguments, **options))

    return wrapped


def experiment_ids(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the id or name of an experiment from the newest ones; none if the server is slow.

    A name that several have is not proposed.
    """
    return _completed(ctx, lambda link: _find(link, incomplete))


def trial_ids(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the id or name of an experiment, and after a dot the number of its trial."""
    owner, dot, index = incomplete.rpartition(".")
    if not dot:
        return experiment_ids(ctx, parameter, incomplete)
    return _completed(ctx, lambda link: _find_trials(link, owner, index))


async def _find_trials(link: Link, owner: str, index: str) -> list[CompletionItem]:
    async with asyncio.timeout(_COMPLETION_S), link.client(patience_s=0) as client:
        trials = (await client.experiment(owner)).trials
    return [
        CompletionItem(f"{owner}.{trial.index}", help=trial.state)
        for trial in trials
        if str(trial.index).startswith(index)
    ]


def _completed(
    ctx: click.Context, find: Callable[[Link], Coroutine[Any, Any, list[CompletionItem]]]
) -> list[CompletionItem]:
    """Return what is found at the addressed server; nothing if it is slow or refuses."""
    data: Path = ctx.params.get("data") or default_path()
    link = Link(data.expanduser(), ctx.params.get("url"), ctx.params.get("token"), json=False)
    try:
        return asyncio.run(find(link))
    except (RungError, OSError, TimeoutError):
        return []


async def _find(link: Link, incomplete: str) -> list[CompletionItem]:
    async with asyncio.timeout(_COMPLETION_S), link.client(patience_s=0) as client:
        page = await client.experiments(limit=100)
    counts = Counter(item.name for item in page.items)
    ids = [
        CompletionItem(item.id, help=f"{printable(item.name)} ({item.state})")
        for item in page.items
        if item.id.startswith(incomplete)
    ]
    names = [
        CompletionItem(item.name, help=f"{item.id} ({item.state})")
        for item in page.items
        if incomplete
        and item.name.startswith(incomplete)
        and item.name != item.id
        and counts[item.name] == 1
        and item.name.isprintable()
    ]
    return ids + names


experiment_argument: Final = click.argument(
    "experiment_id", metavar="ID", shell_complete=experiment_ids
)
optional_experiment_argument: Final = click.argument(
    "experiment_id", metavar="[ID]", required=False, shell_complete=experiment_ids
)
