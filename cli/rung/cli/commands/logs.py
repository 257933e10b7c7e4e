"""`rung logs`: log lines of an experiment or a trial, stored ones and new ones."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from rung.cli.connection_options import PATIENCE_FOLLOWING_S, Link, linked, trial_ids
from rung.cli.terminal import escape_json, escape_lines
from rung.client import ENDED, AsyncClient, LogLine, LogPage, ServerEvent

Query = dict[str, Any]
"""Parameters of a request for log lines: rank, level, text, since, until."""

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_COLORS: Final = {"warning": "yellow", "error": "red", "critical": "red", "debug": "cyan"}
_LOOK_S: Final = 1.0
"""Silence after which `--follow` checks whether the experiment ended, and then waits for its last
lines."""
_PAGE: Final = 20_000
"""Lines of a request; a page is printed in one write."""
_MARK: Final = "-- "
"""Begins a line about missing lines. All other lines begin with a time, so a script cannot forge
one."""

_encoder: Final = msgspec.json.Encoder()


@click.command()
@click.argument("name", metavar="ID|TRIAL", shell_complete=trial_ids)
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until it ended.")
@click.option("--rank", type=click.IntRange(0), help="Of this process of a trial alone.")
@click.option("--level", type=click.Choice(_LEVELS), help="This severe or more.")
@click.option("--text", help="Containing this.")
@click.option("--since", help="From this time on, such as 2026-01-31T12:00:00Z.")
@click.option("--until", help="Before this time.")
@click.option("--limit", type=click.IntRange(1), help="So many lines at most.")
@click.option("--tail", type=click.IntRange(1), help="The last lines alone, so many.")
@linked
async def logs(
    name: str,
    link: Link,
    *,
    following: bool,
    limit: int | None,
    tail: int | None,
    **wanted: Any,
) -> None:
    r"""Print what the trials of an experiment, or one trial, printed.

    Colours are kept on a terminal; other escape sequences and characters that cannot be seen are
    printed as `\x1b`, `\u202e`. With --json: one line of JSON for each, every character kept.
    """
    if tail is not None and (following or limit is not None):
        raise click.UsageError("--tail goes neither with --follow nor with --limit")
    async with link.client(PATIENCE_FOLLOWING_S if following else 3.0) as client:
        if tail is not None:
            _print(await _last(client, name, wanted, tail), as_json=link.json)
            return
        if following:
            pages = _follow(client, name, wanted)
        else:
            pages = _read(client, name, wanted, _PAGE if limit is None else min(limit, _PAGE))
        left = limit
        async with contextlib.aclosing(pages):
            async for lines in pages:
                _print(lines[:left], as_json=link.json)
                if left is not None:
                    left -= len(lines)
                    if left <= 0:
                        break


async def _read(
    client: AsyncClient, name: str, wanted: Query, limit: int = _PAGE
) -> "AsyncGenerator[list[LogLine], None]":
    """Yield stored lines, page by page; the next page is fetched while one is printed."""

    def fetch(after: str | None) -> "asyncio.Task[LogPage]":
        query: Query = {**wanted, "after": after, "limit": limit}
        return asyncio.ensure_future(client.logs(name, **query))

    pending: asyncio.Task[LogPage] | None = fetch(None)
    try:
        while pending is not None:
            page = await pending
            pending = None if page.next_cursor is None else fetch(page.next_cursor)
            await asyncio.sleep(0)  # send the request before the page is printed
            yield page.items
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


async def _last(client: AsyncClient, name: str, wanted: Query, count: int) -> list[LogLine]:
    """Return the last lines, the oldest of them first."""
    found: list[LogLine] = []
    after: str | None = None
    while len(found) < count:
        limit = min(count - len(found), _PAGE)
        query: Query = {**wanted, "after": after, "order": "newest", "limit": limit}
        page = await client.logs(name, **query)
        found += page.items
        after = page.next_cursor
        if after is None:
            break
    return found[::-1]


async def _follow(
    client: AsyncClient, name: str, wanted: Query
) -> "AsyncGenerator[list[LogLine], None]":
    """Yield stored and new lines until the experiment or the trial ended.

    The stream skips the lines of other experiments, so its silence does not mean that all lines
    arrived: at the end the stored lines are read, and those that are missing are yielded.
    """
    since, until = _time_ms("since", wanted["since"]), _time_ms("until", wanted["until"])
    query = {"rank": wanted["rank"], "level": wanted["level"], "from": "start"}
    text, received = (wanted["text"] or "").lower(), _Received()
    if not await _ended(client, name):  # raises at once if nothing has that id
        async with contextlib.aclosing(client.follow_logs(name, query)) as events:
            async for lines in _until_ended(client, name, events):
                chosen = [
                    line
                    for line in lines
                    if text in line.text.lower()
                    and line.time_ms >= (since or 0)
                    and (until is None or line.time_ms < until)
                ]
                for line in chosen:
                    received.add(line)
                yield chosen
                if until is not None and lines and lines[-1].time_ms >= until:
                    break
    async with contextlib.aclosing(_read(client, name, wanted)) as pages:
        async for lines in pages:
            yield [line for line in lines if not received.remove(line)]


class _Received:
    """Lines received by a stream: of each source all up to a time, and how many of that time."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int, str], tuple[int, int]] = {}

    def add(self, line: LogLine) -> None:
        """Add the next line of its source."""
        time_ms, count = self._last.get(_source_of(line), (-1, 0))
        if line.time_ms > time_ms:
            self._last[_source_of(line)] = (line.time_ms, 1)
        elif line.time_ms == time_ms:
            self._last[_source_of(line)] = (time_ms, count + 1)

    def remove(self, line: LogLine) -> bool:
        """Return whether a line was received; each line of the last time is removed once."""
        time_ms, count = self._last.get(_source_of(line), (-1, 0))
        if line.time_ms != time_ms or not count:
            return line.time_ms < time_ms
        self._last[_source_of(line)] = (time_ms, count - 1)
        return True


def _source_of(line: LogLine) -> tuple[str, int, int, str]:
    return line.trial_id, line.run, line.rank, line.stream


async def _until_ended(
    client: AsyncClient, name: str, events: "AsyncGenerator[ServerEvent, None]"
) -> "AsyncGenerator[list[LogLine], None]":
    """Yield the lines of events until the experiment or trial ended and the stream is silent."""
    ended = False
    pending = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=_LOOK_S)
            if done:
                yield _lines_of(pending.result().data)
                pending = asyncio.ensure_future(anext(events))
            elif ended:
                return
            else:
                ended = await _ended(client, name)
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)


async def _ended(client: AsyncClient, name: str) -> bool:
    if await client.kind_of(name) == "trial":
        return (await client.trial(name)).state in ENDED | {"stopped"}
    return (await client.experiment(name, trials="none")).ended_at is not None


def _lines_of(data: Any) -> list[LogLine]:
    """Return the lines of an event: `{trial_id, run, lines}`."""
    if not isinstance(data, dict):
        return []
    trial = {"trial_id": data.get("trial_id"), "run": data.get("run")}
    return msgspec.convert([trial | line for line in data.get("lines", [])], list[LogLine])


def _print(lines: "Sequence[LogLine]", *, as_json: bool) -> None:
    """Print lines in one write; 100,000 writes would take half a minute."""
    if not lines:
        return
    block = escape_json(_encoder.encode_lines(lines)).decode() if as_json else _block(lines)
    click.echo(block, nl=False)
    sys.stdout.flush()


def _block(lines: "Sequence[LogLine]") -> str:
    """Return lines as text, each with its time, trial, rank and level."""
    colored = sys.stdout.isatty()
    clocks: dict[int, str] = {}
    heads: dict[tuple[int, str, int, str, str], str] = {}
    parts: list[str] = []
    texts = escape_lines([line.text for line in lines], colors=colored)
    for line, text in zip(lines, texts, strict=True):
        key = (line.time_ms, line.trial_id, line.rank, line.level, line.stream)
        head = heads.get(key)
        if head is None:
            second = line.time_ms // 1000
            if second not in clocks:
                clocks[second] = f"{datetime.fromtimestamp(second, UTC).astimezone():%H:%M:%S}"
            head = heads[key] = _head(line, clocks[second], colored=colored)
        parts.append(f"{head}{text}\n")
    return "".join(parts)


def _head(line: LogLine, clock: str, *, colored: bool) -> str:
    rank = f" rank {line.rank}" if line.rank else ""
    level = "" if line.level == "info" else f" {line.level.upper()}"
    head = f"{clock}.{line.time_ms % 1000:03} {line.trial_id}{rank}{level}"
    if line.stream == "dropped":
        head = f"{_MARK}{head}"
    if colored:
        color = "magenta" if line.stream == "dropped" else _COLORS.get(line.level, "bright_black")
        head = click.style(head, color)
    return f"{head} "


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
