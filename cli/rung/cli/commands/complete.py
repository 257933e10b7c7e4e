"""Completion of experiment ids in the shell: what the server knows, or nothing if it is slow."""

import asyncio
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from rung.cli.link import Link
from rung.cli.local.data_folder import default_path
from rung.cli.output import printable
from rung.events import RungError

_ANSWER_S: Final = 2.0


def experiment_ids(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the newest experiments whose id begins so."""
    data: Path = ctx.params.get("data") or default_path()
    link = Link(data.expanduser(), ctx.params.get("url"), ctx.params.get("token"), json=False)
    try:
        return asyncio.run(_find(link, incomplete))
    except (RungError, OSError, TimeoutError):
        return []


async def _find(link: Link, incomplete: str) -> list[CompletionItem]:
    async with asyncio.timeout(_ANSWER_S), link.client(patience_s=0) as client:
        page = await client.experiments(limit=100)
    return [
        CompletionItem(item.id, help=f"{printable(item.name)} ({item.state})")
        for item in page.items
        if item.id.startswith(incomplete)
    ]
