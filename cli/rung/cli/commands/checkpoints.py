"""`rung checkpoints`, `rung download`: stored checkpoints and their files."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rung.cli.connection_options import Link, linked, trial_ids
from rung.cli.output import counted, local_time, print_json, print_table, size
from rung.client import AsyncClient, Checkpoint, NotFound
from rung.config.sections.length import UNITS
from rung.events import RungError


@click.command()
@click.argument("name", metavar="ID|TRIAL", shell_complete=trial_ids)
@click.option("--all", "everything", is_flag=True, help="Also those that are deleted.")
@linked
async def checkpoints(name: str, link: Link, *, everything: bool) -> None:
    """List the checkpoints of an experiment or of a trial.

    With --json: `{items}`, the deleted ones included.
    """
    async with link.client() as client:
        items = await client.checkpoints(name)
    if link.json:
        print_json({"items": items})
        return
    shown = [item for item in items if everything or item.state != "deleted"]
    if not shown:
        click.echo("No checkpoints." if not items else "All are deleted; --all lists them.")
        return
    columns: dict[str, Callable[[Checkpoint], Any]] = {
        "checkpoint": lambda it: it.id,
        "trial": lambda it: it.trial_id,
        "state": lambda it: it.state,
        "batches": lambda it: it.steps_completed,
        "size": lambda it: size(it.size_bytes),
        "stored": lambda it: local_time(it.stored_at),
        "metrics": lambda it: {k: v for k, v in it.metrics.items() if k not in UNITS},
        "why": lambda it: it.reason,
    }
    if not any(item.reason for item in shown):
        del columns["why"]
    print_table(
        list(columns),
        [[value(item) for value in columns.values()] for item in shown],
        right=["batches", "size"],
        spare=["trial", "stored", "why"],
    )


@click.command()
@click.argument("name", metavar="CHECKPOINT|ID|TRIAL", shell_complete=trial_ids)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder for the files. [the checkpoint's id]",
)
@linked
async def download(name: str, output: Path | None, link: Link) -> None:
    """Fetch a checkpoint's files, each checked against its digest.

    Of an experiment: its best trial's checkpoint. Of a trial: its best one. Where that of the best
    value is not left, another one of the trial, and which one is said.
    """
    async with link.client() as client:
        checkpoint_id, note = await choose_checkpoint(client, name)
        folder = (output or Path(checkpoint_id.replace("/", "_"))).absolute()
        checkpoint = await client.download(checkpoint_id, folder)
    if link.json:
        print_json({"folder": str(folder), "checkpoint": checkpoint, "note": note})
    else:
        files = f"{counted(checkpoint.file_count, 'file')} ({size(checkpoint.size_bytes)})"
        click.echo(f"{files} of checkpoint {checkpoint.id} in {folder}")
        if note is not None:
            click.echo(f"It is {note}.")


async def choose_checkpoint(client: AsyncClient, name: str) -> tuple[str, str | None]:
    """Return the id of the checkpoint of an experiment, of a trial, or of that name itself.

    Returns:
        It, and a note where it is not the checkpoint of the best value.
    """
    owners = {"experiment": _of_experiment, "trial": _of_trial}
    with contextlib.suppress(NotFound):
        owner = owners.get(await client.kind_of(name))
        if owner is not None:
            return await owner(client, name)
    return (await client.checkpoint(name)).id, None


async def _of_experiment(client: AsyncClient, name: str) -> tuple[str, str | None]:
    best = await client.best(name)
    if best.checkpoint is None:
        raise RungError(
            f"no checkpoint of trial {best.trial.id}, the best of {name}, is left;"
            f" `rung checkpoints {name}` lists the others"
        )
    return best.checkpoint.id, best.checkpoint_note


async def _of_trial(client: AsyncClient, trial_id: str) -> tuple[str, str | None]:
    trial = await client.trial(trial_id)
    if trial.best_checkpoint_id is None:
        raise RungError(f"trial {trial_id} has no checkpoint that is left")
    return trial.best_checkpoint_id, trial.best_checkpoint_note
