"""A group of commands, each imported when it is called; help and completion import none."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import click
from click.shell_completion import CompletionItem


class Entry(Protocol):
    """A command before it is imported."""

    @property
    def home(self) -> str:
        """Module and name of the command."""

    @property
    def help(self) -> str:
        """A sentence."""


class LazyGroup(click.Group):
    """Imports a command when it is called; proposes a name for a misspelt one."""

    def __init__(
        self,
        *,
        entries: Mapping[str, Entry],
        kind: str = "command",
        adapt: Callable[[Any, str], click.Command] | None = None,
        **options: Any,
    ) -> None:
        """Prepare it.

        Args:
            entries: the commands by name, in the order in which help lists them.
            kind: what its commands are, for help and errors.
            adapt: makes a command of an imported object that is none, and of its help.
            options: click's.
        """
        super().__init__(**options)
        self._entries = entries
        self._kind = kind
        self._adapt = adapt

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(self._entries)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Import a command and return it, None if there is none of that name.

        Raises:
            ClickException: a package that it needs is not installed.
        """
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.home.partition(":")
        try:
            command: Any = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"the {self._kind} {cmd_name} is not installed here: {error.name} is missing"
            ) from error
        if self._adapt and not isinstance(command, click.Command):
            return self._adapt(command, entry.help)
        assert isinstance(command, click.Command), entry
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands."""
        with formatter.section(f"{self._kind.capitalize()}s"):
            formatter.write_dl([(name, entry.help) for name, entry in self._entries.items()])

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the commands whose names begin so."""
        return [
            CompletionItem(name, help=entry.help)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; propose one for a misspelt name."""
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - only for a misspelt name

            close = difflib.get_close_matches(args[0], self._entries, 1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            ctx.fail(f"there is no {self._kind} `{args[0]}`.{hint}")
        return super().resolve_command(ctx, args)
