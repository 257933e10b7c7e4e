"""`rung delete`, `rung restore`, `rung retention`: what is deleted, brought back, and kept."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import click

from rung.cli.bulk import Chosen, change_all, several
from rung.cli.connection_options import Link, experiment_ids, linked
from rung.cli.exit_code import FAILED, OK
from rung.cli.output import counted, local_time, print_facts, print_json, print_table, size
from rung.client import (
    ENDED,
    AsyncClient,
    BatchItem,
    BatchWanted,
    Checkpoint,
    CheckpointDeletion,
    Dependent,
    ExperimentDeletion,
    NotFound,
    RetentionAnswer,
    RetentionWanted,
)

_DONE_S: Final = 30.0
"""How long to wait until files are deleted; a store that is away holds that up."""
_LOOK_S: Final = 0.1
_DELETING: Final = "urn:rung:problem:deleting"
_SHOWN: Final = 20
_NOT_YET: Final = (
    "{} is not deleted yet: its deletion is on record, and is refused where something came to"
    " depend on it meanwhile."
)
_NOT_YET_BACK: Final = (
    "Experiment {} is not back yet: the request is on record, and is too late where it was deleted"
    " for good meanwhile."
)

_Deletion = ExperimentDeletion | CheckpointDeletion


@click.command()
@click.argument("names", metavar="[ID|CHECKPOINT]...", nargs=-1, shell_complete=experiment_ids)
@click.option("--where", metavar="FILTER", help="All that a filter selects (docs/FILTERS.md).")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also what experiments that have ended started from.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--now", is_flag=True, help="At once: `rung restore` does not bring it back.")
@linked
async def delete(  # noqa: PLR0913 - its options
    names: tuple[str, ...],
    link: Link,
    *,
    where: str | None,
    yes: bool,
    force: bool,
    dry_run: bool,
    now: bool,
) -> int:
    """Delete experiments that have ended, or checkpoints.

    It says what goes, and what depends on it, and asks. An experiment goes with its checkpoints,
    metrics and log lines, and with its code unless another experiment has the same: it is hidden
    at once, and all of that stays for as long as `rung restore` brings it back, which is said.
    --now deletes at once, also what `rung list --deleted` shows. A checkpoint is deleted at once.

    What the ledger has on record stays: `rung audit` decides it again. What is in use is not
    deleted: a checkpoint that a trial may resume from, or an experiment that has not ended starts
    from. With --where, those that cannot be deleted are reported, and the others are.

    Exit code 1: it was not deleted. With --json: `{items}`.
    """
    if not names and where is None:
        raise click.UsageError("name experiments or checkpoints, or select by --where FILTER")
    async with link.client() as client:
        if where is not None:
            wanted = BatchWanted(action="delete", force=force, dry_run=dry_run, now=now)
            return await _delete_all(link, client, Chosen(names, where, yes), wanted)
        found = [await _ask(client, name, dry_run=True, now=now) for name in dict.fromkeys(names)]
        if not link.json:
            for each in found:
                _print(each)
        if dry_run:
            if link.json:
                print_json({"items": found})
            return OK
        if not yes:
            dependents = [item for each in found for item in each.dependents]
            if not _confirmed(dependents, forced=force):
                click.echo("Nothing is deleted.")
                return FAILED
            force = force or bool(dependents)
        return await _delete(link, client, found, force=force, now=now)


@click.command()
@several
@linked
async def restore(link: Link, *, names: tuple[str, ...], where: str | None, yes: bool) -> int:
    """Take the deletion of experiments back: they are as they were, with all that they had.

    `rung list --deleted` shows them, and until when each can be restored. Each is named by its
    whole id, or selected by --where among those that can be.

    Exit code 1: one was not restored.
    """
    chosen = Chosen(names, where, yes)
    async with link.client() as client:
        wanted = BatchWanted(action="restore")
        code, items = await change_all(link, client, chosen, wanted, "restored", deleted=True)
        for name in [item.experiment_id for item in items if item.outcome == "done"]:
            if not await _until(partial(_experiment_is_there, client, name)):
                click.echo(_NOT_YET_BACK.format(name), err=True)
                code = FAILED
    return code


@click.command()
@several
@click.option("--save-experiment-best", type=click.IntRange(0), help="The best of all trials.")
@click.option("--save-trial-best", type=click.IntRange(0), help="The best of each trial.")
@click.option("--save-trial-latest", type=click.IntRange(0), help="The latest of each trial.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@linked
async def retention(
    link: Link,
    *,
    names: tuple[str, ...],
    where: str | None,
    yes: bool,
    dry_run: bool,
    **wanted: Any,
) -> int:
    """Change which checkpoints experiments keep: how many of the best and of the latest.

    The numbers are those of `checkpoint_storage` in the experiment file; one that is not given
    stays as it is. It says which checkpoints are superfluous then, and asks. Those that a trial
    may resume from, or another experiment starts from, are kept whatever the numbers. What is
    deleted does not come back. Without a number it only says what is kept, of one experiment.

    Exit code 1: it was not changed.
    """
    change = any(value is not None for value in wanted.values())
    chosen = Chosen(names, where, yes)
    async with link.client() as client:
        if chosen.single is None:
            if not change:
                raise click.UsageError("say how many are kept, or name one experiment")
            policy = RetentionWanted(**wanted)
            batch = BatchWanted(action="retain", retention=policy, dry_run=dry_run)
            return await _free_all(link, client, chosen, batch)
        found = await client.change_retention(chosen.single, **wanted, dry_run=True)
        if not link.json:
            _print_retention(found, change=change)
        if change and not dry_run:
            if found.items and not yes and not _confirmed([], forced=True):
                click.echo("Nothing is changed.")
                return FAILED
            found = await client.change_retention(found.experiment_id, **wanted)
            if not link.json:
                click.echo(f"The retention of experiment {found.experiment_id} is changed.")
        if link.json:
            print_json(found)
    return OK


async def _delete_all(link: Link, client: AsyncClient, chosen: Chosen, wanted: BatchWanted) -> int:
    """Delete what a filter selects, and wait until it is gone."""
    code, items = await change_all(link, client, chosen, wanted, "deleted")
    if wanted.dry_run:
        if not link.json:
            print_freed(items)
        return code
    done = [item for item in items if item.outcome == "done"]
    for name in [item.experiment_id for item in done]:
        if not await _until(partial(_experiment_is_gone, client, name)):
            click.echo(_NOT_YET.format(f"Experiment {name}"), err=True)
            code = FAILED
    if not link.json:
        _print_way_back(done)
    return code


async def _free_all(link: Link, client: AsyncClient, chosen: Chosen, wanted: BatchWanted) -> int:
    """Change what several experiments keep, or say what that would free."""
    code, items = await change_all(link, client, chosen, wanted, "changed")
    if not link.json:
        print_freed(items, would=wanted.dry_run)
    return code


def print_freed(items: Sequence[BatchItem], *, would: bool = True) -> None:
    """Print which checkpoints go, by experiment."""
    rows = [item for item in items if item.checkpoint_count]
    if not rows:
        click.echo("No checkpoint is superfluous.")
        return
    rows.sort(key=lambda item: -(item.checkpoint_bytes or 0))
    print_table(
        ["experiment", "name", "checkpoints", "size"],
        [
            (it.experiment_id, it.name, f"{it.checkpoint_count:,}", size(it.checkpoint_bytes or 0))
            for it in rows
        ],
        right=["checkpoints", "size"],
    )
    count = counted(sum(it.checkpoint_count or 0 for it in rows), "checkpoint")
    total = size(sum(it.checkpoint_bytes or 0 for it in rows))
    click.echo(f"{count} ({total}) {'would be' if would else 'will be'} deleted.")


async def _delete(
    link: Link, client: AsyncClient, found: Sequence[_Deletion], *, force: bool, now: bool
) -> int:
    """Delete one after the other, each until it is gone."""
    done = []
    for each in found:
        asked = await _ask(client, _id_of(each), force=force, now=now)
        done.append(asked)
        if not await _is_done(client, each):
            click.echo(_NOT_YET.format(_title(each)), err=True)
            return FAILED
        if not link.json:
            click.echo(f"{_title(each)} is deleted.")
            _print_way_back([asked])
    if link.json:
        print_json({"items": done})
    return OK


async def _ask(
    client: AsyncClient,
    name: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    now: bool = False,
) -> _Deletion:
    """Ask to delete the experiment of this name, or else the checkpoint."""
    kind = await client.kind_of(name)
    if kind == "trial":
        raise click.UsageError(
            f"{name} is a trial, which is deleted with its experiment alone;"
            f" `rung checkpoints {name}` lists what can be deleted of it"
        )
    if kind == "experiment":
        try:
            return await client.delete_experiment(name, force=force, dry_run=dry_run, now=now)
        except NotFound as error:
            if error.status != 404:
                raise
            missing = error
        try:
            return await client.delete_checkpoint(name, force=force, dry_run=dry_run)
        except NotFound as error:
            raise (missing if error.status == 404 else error) from None
    return await client.delete_checkpoint(name, force=force, dry_run=dry_run)


def _print_way_back(found: Sequence[_Deletion | BatchItem]) -> None:
    """Print how deletions are taken back, and until when, where they can be."""
    back = {
        each.experiment_id: each.restorable_until
        for each in found
        if not isinstance(each, CheckpointDeletion) and each.restorable_until is not None
    }
    if back:
        until = local_time(min(back.values()))
        click.echo(f"Until {until}, `rung restore {' '.join(back)}` takes that back.")


def _id_of(found: _Deletion) -> str:
    return found.checkpoint.id if isinstance(found, CheckpointDeletion) else found.experiment_id


def _title(found: _Deletion) -> str:
    kind = "Checkpoint" if isinstance(found, CheckpointDeletion) else "Experiment"
    return f"{kind} {_id_of(found)}"


async def _is_done(client: AsyncClient, found: _Deletion) -> bool:
    """Wait until it is gone; return whether it is."""
    look = _checkpoint_is_gone if isinstance(found, CheckpointDeletion) else _experiment_is_gone
    return await _until(lambda: look(client, _id_of(found)))


async def _until(look: Callable[[], Awaitable[bool]]) -> bool:
    deadline = time.monotonic() + _DONE_S
    while not await look():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def _experiment_is_gone(client: AsyncClient, experiment_id: str) -> bool:
    try:
        await client.trials(experiment_id)
    except NotFound as error:
        return error.kind != _DELETING
    return False


async def _experiment_is_there(client: AsyncClient, experiment_id: str) -> bool:
    try:
        await client.trials(experiment_id)
    except NotFound:
        return False
    return True


async def _checkpoint_is_gone(client: AsyncClient, checkpoint_id: str) -> bool:
    try:
        return (await client.checkpoint(checkpoint_id)).state == "deleted"
    except NotFound:  # with its experiment
        return True


def _confirmed(dependents: Sequence[Dependent], *, forced: bool) -> bool:
    """Ask on a terminal.

    Raises:
        click.UsageError: there is none.
    """
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: --yes deletes without asking")
    question = "Delete it, although other experiments started from it?"
    return click.confirm(question if dependents and not forced else "Delete it?", err=True)


def _print(found: _Deletion) -> None:
    if isinstance(found, CheckpointDeletion):
        checkpoint = found.checkpoint
        facts: list[tuple[str, Any]] = [
            ("checkpoint", f"{checkpoint.id} ({size(checkpoint.size_bytes)})"),
            ("of", f"trial {checkpoint.trial_id} at batch {checkpoint.steps_completed:,}"),
            ("metrics", checkpoint.metrics or None),
            ("which is", found.note),
        ]
    else:
        lines = None
        if found.log_lines is not None:
            lines = f"{counted(found.log_lines, 'line')} ({size(found.log_bytes or 0)})"
        facts = [
            ("experiment", f"{found.experiment_id} ({found.name}, {found.state})"),
            ("trials", f"{found.trial_count:,}, with their metrics"),
            ("checkpoints", f"{found.checkpoint_count:,} ({size(found.checkpoint_bytes)})"),
            ("log", lines),
            ("code", "stays: other experiments have the same" if found.code_shared else None),
            ("restorable", _until_when(found)),
        ]
    print_facts(facts)
    for each in found.dependents:
        state = f"has {each.state}" if each.state in ENDED else each.state
        click.echo(
            f"Experiment {each.experiment_id} ({each.name}, {state}) started from checkpoint"
            f" {each.checkpoint_id}."
        )


def _until_when(found: ExperimentDeletion) -> str:
    if found.restorable_until is None:
        return "no: it is deleted at once"
    return f"until {local_time(found.restorable_until)}"


def _print_retention(found: RetentionAnswer, *, change: bool) -> None:
    before, after = found.before, found.after
    rows = [
        ("best of experiment", before.save_experiment_best, after.save_experiment_best),
        ("best of each trial", before.save_trial_best, after.save_trial_best),
        ("latest of each trial", before.save_trial_latest, after.save_trial_latest),
    ]
    if not change:
        print_facts([(name, was) for name, was, _ in rows])
        return
    print_table(["kept", "before", "after"], rows, right=["before", "after"])
    if not found.items:
        click.echo("No checkpoint is superfluous.")
        return
    click.echo()
    _print_checkpoints(found.items)
    what = counted(len(found.items), "checkpoint")
    click.echo(f"{what} ({size(found.size_bytes)}) will be deleted.")


def _print_checkpoints(items: Sequence[Checkpoint]) -> None:
    print_table(
        ["checkpoint", "trial", "batches", "size", "metrics"],
        [
            (item.id, item.trial_id, item.steps_completed, size(item.size_bytes), item.metrics)
            for item in items[:_SHOWN]
        ],
        right=["batches", "size"],
    )
    if len(items) > _SHOWN:
        click.echo(f"and {len(items) - _SHOWN:,} more; --json lists all")
