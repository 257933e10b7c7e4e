"""The command `rung` and its subcommands, each imported when it is called."""

from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from rung.cli import exit_code


class _Entry(NamedTuple):
    home: str
    """Module and name of the command."""
    help: str


COMMANDS: Final = {
    "up": _Entry("rung.cli.up:up", "Start Rung on this machine: services, agent and page."),
    "down": _Entry("rung.cli.down:down", "Stop the Rung of a data folder."),
    "status": _Entry("rung.cli.status:status", "Show whether Rung runs, its slots and queue."),
    "submit": _Entry("rung.cli.submit:submit", "Submit an experiment."),
    "list": _Entry("rung.cli.experiments:list_", "List experiments, the newest first."),
    "show": _Entry("rung.cli.experiments:show", "Show an experiment or a trial."),
    "wait": _Entry("rung.cli.wait:wait", "Wait until an experiment ended."),
    "logs": _Entry("rung.cli.logs:logs", "Print what trials printed."),
    "pause": _Entry("rung.cli.control:pause", "Have an experiment give its slots back and wait."),
    "resume": _Entry("rung.cli.control:resume", "Have a paused experiment go on."),
    "cancel": _Entry("rung.cli.control:cancel", "End an experiment, checkpointing first."),
    "kill": _Entry("rung.cli.control:kill", "End an experiment at once."),
    "trial": _Entry("rung.cli.trial:trial", "Move a trial to another agent."),
    "best": _Entry("rung.cli.experiments:best", "Show the best trial and its checkpoint."),
    "checkpoints": _Entry("rung.cli.checkpoints:checkpoints", "List checkpoints."),
    "download": _Entry("rung.cli.checkpoints:download", "Fetch a checkpoint's files."),
    "audit": _Entry("rung.cli.audit:audit", "Decide every decision again, and compare."),
    "ledger": _Entry("rung.cli.ledger:ledger", "Read, export, import and archive the ledger."),
    "objects": _Entry("rung.cli.objects:objects", "Copy checkpoints and code to another store."),
    "metrics": _Entry("rung.cli.metrics:metrics", "Look after the tables of metrics and logs."),
    "tensorboard": _Entry("rung.cli.tensorboard:tensorboard", "Show curves in TensorBoard."),
    "report": _Entry("rung.cli.report:report", "Report metrics, from a script of a trial."),
    "checkpoint": _Entry("rung.cli.keep:checkpoint", "Keep files, from a script of a trial."),
    "preview": _Entry("rung.cli.preview:preview", "Show what a search would do and cost."),
    "service": _Entry("rung.cli.service:service", "Run one service by itself, on any machine."),
    "cluster": _Entry("rung.cli.cluster:cluster", "Make and watch a ledger on Kafka."),
    "schema": _Entry("rung.cli.about:schema", "Print the JSON Schema of the experiment file."),
    "version": _Entry("rung.cli.about:version", "Print the version."),
    "completion": _Entry("rung.cli.about:completion", "Print a shell's completion script."),
}
"""In the order in which `rung --help` lists them."""


class LazyGroup(click.Group):
    """Imports a command when it is called; help and completion of names import none."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Return a command by name, None if there is none."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.home.partition(":")
        command: Any = getattr(import_module(module), name)
        assert isinstance(command, click.Command), entry
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the commands that begin so."""
        return [
            CompletionItem(name, help=entry.help)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; propose one for a misspelt name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - only for a slip

            close = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            ctx.fail(f"there is no command `{args[0]}`.{hint}")
        return super().resolve_command(ctx, args)


@click.command(
    cls=LazyGroup,
    epilog=exit_code.HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def rung() -> None:
    """Train deep-learning models, search their hyperparameters, and prove how it came about.

    `rung up` starts it on this machine; `rung submit experiment.yaml folder -f` trains.

    Nearly every command takes --json; those that ask a Rung take --data (or RUNG_DATA), or --url
    and --token (RUNG_URL, RUNG_TOKEN), to say which one is meant.
    """
