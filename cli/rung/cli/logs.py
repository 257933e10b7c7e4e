"""`rung logs`."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from rung.cli.complete import experiment_ids
from rung.cli.link import PATIENCE_FOLLOWING_S, Link, asynchronous, linked
from rung.cli.output import print_json_line
from rung.cli.terminal import escape_line

if TYPE_CHECKING:
    from rung.client import AsyncClient, Level, LogLine, ServerEvent

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_COLORS: Final = {"warning": "yellow", "error": "red", "critical": "red", "debug": "cyan"}
_LOOK_S: Final = 1.0
"""How often to look whether what is followed has ended, and how long its last lines may take."""


class Wanted(NamedTuple):
    """Which lines to print."""

    rank: int | None
    level: "Level | None"
    text: str | None
    since: str | None
    until: str | None


@click.command()
@click.argument("name", metavar="ID|TRIAL", shell_complete=experiment_ids)
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until it ended.")
@click.option("--rank", type=click.IntRange(0), help="Of this process of a trial alone.")
@click.option("--level", type=click.Choice(_LEVELS), help="This severe or more.")
@click.option("--text", help="Containing this.")
@click.option("--since", help="From this time on, such as 2026-01-31T12:00:00Z.")
@click.option("--until", help="Before this time.")
@click.option("--limit", type=click.IntRange(1), help="So many lines at most.")
@linked
@asynchronous
async def logs(  # noqa: PLR0913 - what lines can be chosen by
    name: str,
    link: Link,
    *,
    following: bool,
    rank: int | None,
    level: "Level | None",
    text: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
) -> None:
    r"""Print what the trials of an experiment, or one trial, printed.

    Colours are kept on a terminal; other escape sequences and characters that cannot be seen are
    printed as `\x1b`, `\u202e`. With --json: one line of JSON for each, every character kept.
    """
    wanted = Wanted(rank, level, text, since, until)
    async with link.client(PATIENCE_FOLLOWING_S if following else 3.0) as client:
        lines = _follow(client, name, wanted) if following else _read(client, name, wanted)
        count = 0
        async with contextlib.aclosing(lines):
            async for line in lines:
                print_json_line(line) if link.json else _print(line)
                count += 1
                if count == limit:
                    break


async def _read(
    client: "AsyncClient", name: str, wanted: Wanted
) -> "AsyncGenerator[LogLine, None]":
    """Yield what is there."""
    after: str | None = None
    while True:
        page = await client.logs(name, after=after, **wanted._asdict())
        for line in page.items:
            yield line
        after = page.next_cursor
        if after is None:
            return


async def _follow(
    client: "AsyncClient", name: str, wanted: Wanted
) -> "AsyncGenerator[LogLine, None]":
    """Yield what is there and what comes, until the experiment or the trial ended.

    The stream passes everybody's lines, so its silence does not mean that all of these came: what
    is stored is read at the end, and the lines among it that did not come are yielded then.
    """
    since, until = _time_ms("since", wanted.since), _time_ms("until", wanted.until)
    query = {"rank": wanted.rank, "level": wanted.level, "from": "start"}
    text, shown = (wanted.text or "").lower(), _Shown()
    if not await _ended(client, name):  # says at once if there is nothing of that name
        async with contextlib.aclosing(client.follow_logs(name, query)) as events:
            async for line in _until_ended(client, name, events):
                if until is not None and line.time_ms >= until:
                    break
                if text in line.text.lower() and line.time_ms >= (since or 0):
                    shown.note(line)
                    yield line
    async with contextlib.aclosing(_read(client, name, wanted)) as lines:
        async for line in lines:
            if not shown.take(line):
                yield line


class _Shown:
    """The lines that came by a stream: of each source all up to its last one, by time."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int, str], tuple[int, int]] = {}

    def note(self, line: "LogLine") -> None:
        """Note the next line of its source."""
        time_ms, count = self._last.get(_source_of(line), (-1, 0))
        if line.time_ms > time_ms:
            self._last[_source_of(line)] = (line.time_ms, 1)
        elif line.time_ms == time_ms:
            self._last[_source_of(line)] = (time_ms, count + 1)

    def take(self, line: "LogLine") -> bool:
        """Return whether it came already; of those with the last time, so many as were noted."""
        time_ms, count = self._last.get(_source_of(line), (-1, 0))
        if line.time_ms != time_ms or not count:
            return line.time_ms < time_ms
        self._last[_source_of(line)] = (time_ms, count - 1)
        return True


def _source_of(line: "LogLine") -> tuple[str, int, int, str]:
    return line.trial_id, line.run, line.rank, line.stream


async def _until_ended(
    client: "AsyncClient", name: str, events: "AsyncGenerator[ServerEvent, None]"
) -> "AsyncGenerator[LogLine, None]":
    """Yield the lines of events until what they are about ended and nothing more comes."""
    ended = False
    coming = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=_LOOK_S)
            if done:
                for line in _lines_of(coming.result().data):
                    yield line
                coming = asyncio.ensure_future(anext(events))
            elif ended:
                return
            else:
                ended = await _ended(client, name)
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def _ended(client: "AsyncClient", name: str) -> bool:
    from rung.client import ENDED  # noqa: PLC0415 - a quarter of a second

    if "." in name:
        return (await client.trial(name)).state in ENDED | {"stopped"}
    return (await client.experiment(name)).ended_at is not None


def _lines_of(data: Any) -> "list[LogLine]":
    """Return the lines of an event: `{trial_id, run, lines}`."""
    from rung.client import LogLine  # noqa: PLC0415 - see above

    if not isinstance(data, dict):
        return []
    trial = {"trial_id": data.get("trial_id"), "run": data.get("run")}
    return msgspec.convert([trial | line for line in data.get("lines", [])], list[LogLine])


def _print(line: "LogLine") -> None:
    moment = datetime.fromtimestamp(line.time_ms / 1000, UTC).astimezone()
    rank = f" rank {line.rank}" if line.rank else ""
    level = "" if line.level == "info" else f" {line.level.upper()}"
    head = f"{moment:%H:%M:%S}.{line.time_ms % 1000:03} {line.trial_id}{rank}{level}"
    text = escape_line(line.text, colors=sys.stdout.isatty())
    click.echo(f"{click.style(head, _COLORS.get(line.level, 'bright_black'))} {text}")


def _time_ms(option: str, value: str | None) -> int | None:
    """Return a time given as RFC 3339 or as Unix time in milliseconds, in milliseconds."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return int(value)
    try:
        return int(datetime.fromisoformat(value).timestamp() * 1000)
    except ValueError:
        raise click.UsageError(
            f"--{option} must be a time such as 2026-01-31T12:00:00Z, not {value!r}"
        ) from None
