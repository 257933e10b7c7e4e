"""Which Rung a command speaks with, and how it answers: the options that all commands share."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from rung.cli.local.data_folder import default_path

if TYPE_CHECKING:
    from rung.client import AsyncClient, Location

T = TypeVar("T")


class _SourceType(click.ParamType):
    """Takes a path that exists, or an URL."""

    name = "path|URL"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """Return a path, or an URL as it is."""
        if isinstance(value, Path) or "://" in value:
            return value
        return Path(str(_path.convert(value.removeprefix("sqlite:"), param, ctx)))


_path: Final = click.Path(exists=True)
SOURCE: Final = _SourceType()
"""A ledger to be read, wherever it is; `rung.cli.operations.ledger.records` opens it."""
ledger_option: Final = click.option(
    "--ledger",
    "source",
    type=SOURCE,
    help="In place of --data: an exported file, a ledger or a data folder, kafka://HOST/PREFIX, or"
    " an archive (file:///…, s3://BUCKET/PREFIX).",
)
"""For commands that can read a ledger without a server."""

PATIENCE_S: Final = 8.0
"""How long a command goes on trying while connections break; one that is refused is final.

Longer than a gateway takes (5 s) to say that it does not show yet what the client wrote before,
and the 2 s that it asks to wait then: that is worth another try.
"""
PATIENCE_FOLLOWING_S: Final = 60.0
"""How long one that follows does, once it met the server: a restart is no reason to leave."""
TIMEOUT_S: Final = 120.0
"""How long a command waits for one answer; audits take long."""


class Link(NamedTuple):
    """Which Rung is meant."""

    data: Path
    url: str | None
    token: str | None
    json: bool
    """Whether to print JSON."""

    def client(
        self, patience_s: float = PATIENCE_S, timeout_s: float = TIMEOUT_S
    ) -> "AsyncClient":
        """Return a client of it.

        Args:
            patience_s: how long it retries while there is no answer.
            timeout_s: how long it waits for one answer.
        """
        from rung.client import AsyncClient  # noqa: PLC0415 - a quarter of a second

        return AsyncClient(locate=self._locate, patience_s=patience_s, timeout_s=timeout_s)

    def _locate(self) -> "Location":
        """Find the server: by its address, or by what the data folder says at this moment."""
        from rung.client import of_folder, of_url  # noqa: PLC0415 - see above

        if self.url is not None:
            return of_url(self.url, self.token, self.data)
        return of_folder(self.data, self.token)


def linked(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --json, --data, --url and --token, as its argument `link`."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON, with the API's keys.")
    @click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="RUNG_DATA",
        help="Data folder of the Rung that is meant. [RUNG_DATA, ~/.rung]",
    )
    @click.option("--url", envvar="RUNG_URL", help="Its address, in place of --data. [RUNG_URL]")
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
        # A folder that is named on the command line goes before an address in the environment.
        source = click.get_current_context().get_parameter_source
        named = click.core.ParameterSource.COMMANDLINE
        if source("data") is named and source("url") is not named:
            url = None
        link = Link(folder, url or None, token or None, as_json)
        return command(*arguments, link=link, **options)

    return wrapped


def asynchronous(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Run a command that is a coroutine function."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> T:
        return asyncio.run(command(*arguments, **options))

    return wrapped
