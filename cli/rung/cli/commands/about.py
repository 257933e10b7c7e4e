"""`rung schema`, `rung version`, `rung completion`: about Rung itself."""

import platform
from importlib.metadata import version as version_of
from typing import Final

import click

from rung.cli.output import print_json
from rung.events import RungError

_HOW: Final = {
    "bash": 'eval "$(rung completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(rung completion zsh)" in ~/.zshrc',
    "fish": "rung completion fish > ~/.config/fish/completions/rung.fish",
}


@click.command()
@click.option("--json", is_flag=True, expose_value=False, help="The output is JSON anyway.")
def schema() -> None:
    """Print the JSON Schema of the experiment file, for editors.

    In VS Code with the YAML extension: `rung schema > rung.schema.json`, and as the first line of
    the file: `# yaml-language-server: $schema=rung.schema.json`
    """
    from rung.config import json_schema  # noqa: PLC0415 - a third of a second

    print_json(json_schema())


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(*, as_json: bool) -> None:
    """Print the version of Rung and of Python."""
    facts = {"rung": version_of("rung"), "python": platform.python_version()}
    if as_json:
        print_json(facts)
    else:
        click.echo(f"rung {facts['rung']}, Python {facts['python']}")


# A docstring may not contain the \b below which click keeps line breaks.
@click.command(
    help="""Print the completion script of a shell.

    \b
    bash: eval "$(rung completion bash)" in ~/.bashrc
    zsh:  eval "$(rung completion zsh)" in ~/.zshrc
    fish: rung completion fish > ~/.config/fish/completions/rung.fish
    """
)
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only here

    from rung.cli.group import rung  # noqa: PLC0415 - the group imports this module

    kind = get_completion_class(shell)
    assert kind is not None, shell
    try:
        click.echo(kind(rung, {}, "rung", "_RUNG_COMPLETE").source())
    except RuntimeError as error:
        raise RungError(f"{shell}: {error}") from error
