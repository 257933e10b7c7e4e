"""`rung move`: experiments to another workspace or project."""

import click

from rung.cli.connection_options import Link, experiment_ids, linked
from rung.cli.exit_code import FAILED, OK
from rung.cli.output import print_json
from rung.client import ClientError, Moved


@click.command()
@click.argument("names", metavar="ID...", nargs=-1, required=True, shell_complete=experiment_ids)
@click.option("--workspace", metavar="NAME", help="Where to.")
@click.option("--project", metavar="NAME", help="Of that workspace, or of its own.")
@linked
async def move(
    names: tuple[str, ...], workspace: str | None, project: str | None, link: Link
) -> int:
    """Move experiments to another workspace, or to another project of their own.

    From then on the roles in the new workspace hold; what they run goes on. Without --project they
    go to the workspace's only project, or to the one called default. Exit code 1: not all are
    moved.
    """
    if workspace is None and project is None:
        raise click.UsageError("give --workspace, --project, or both")
    done: list[Moved] = []
    problems: list[dict[str, str]] = []
    async with link.client() as client:
        for name in dict.fromkeys(names):
            try:
                found = await client.move_experiment(name, workspace=workspace, project=project)
            except ClientError as error:
                if len(names) == 1:
                    raise
                problems.append({"experiment_id": name, "problem": str(error)})
                click.echo(f"{name}: {error}", err=True)
            else:
                done.append(found)
                if not link.json:
                    place = f"project {found.project} of workspace {found.workspace}"
                    click.echo(f"Experiment {found.experiment_id} is in {place}.")
    if link.json:
        print_json({"items": done, "problems": problems})
    return FAILED if problems else OK
