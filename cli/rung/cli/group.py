"""The command `rung`: the table of its subcommands."""

from typing import Final, NamedTuple

import click

from rung.cli import exit_code
from rung.cli.lazy_group import LazyGroup


class _Entry(NamedTuple):
    home: str
    help: str


_COMMANDS: Final = {
    "up": ("local.up:up", "Start Rung on this machine: services, agent and page."),
    "down": ("local.up:down", "Stop the Rung of a data folder."),
    "status": ("commands.status:status", "Show whether Rung runs, its slots and queue."),
    "submit": ("commands.submit:submit", "Submit an experiment."),
    "list": ("commands.experiments:list_", "List experiments, the newest first."),
    "show": ("commands.experiments:show", "Show an experiment or a trial."),
    "wait": ("commands.wait:wait", "Wait until an experiment ended."),
    "logs": ("commands.logs:logs", "Print the log lines of trials."),
    "gc": ("operations.gc:gc", "Delete log lines that are needed no longer."),
    "pause": ("commands.control:pause", "Have an experiment give its slots back and wait."),
    "resume": ("commands.control:resume", "Have a paused experiment go on."),
    "cancel": ("commands.control:cancel", "End an experiment, checkpointing first."),
    "kill": ("commands.control:kill", "End an experiment at once."),
    "trial": ("commands.control:trial", "Move a trial to another agent."),
    "pool": ("operations.pool:pool", "Choose the scheduling policy of a pool."),
    "deadletter": (
        "operations.deadletter:deadletter",
        "List, retry and drop messages that a component rejected.",
    ),
    "best": ("commands.experiments:best", "Show the best trial and its checkpoint."),
    "checkpoints": ("commands.checkpoints:checkpoints", "List checkpoints."),
    "download": ("commands.checkpoints:download", "Fetch a checkpoint's files."),
    "audit": ("operations.ledger.audit:audit", "Decide every decision again, and compare."),
    "verify": (
        "operations.ledger.verify:verify",
        "Check that no record was altered, by the seals.",
    ),
    "ledger": ("operations.ledger.command:ledger", "Read, export, import and archive the ledger."),
    "objects": ("operations.objects:objects", "Copy checkpoints and code to another store."),
    "metrics": ("operations.metrics:metrics", "Migrate the tables of metrics and logs."),
    "tensorboard": ("commands.tensorboard:tensorboard", "Show curves in TensorBoard."),
    "report": ("commands.script:report", "Report metrics, from a script of a trial."),
    "checkpoint": (
        "commands.script:checkpoint",
        "Store and restore files, from a script of a trial.",
    ),
    "preview": ("commands.preview:preview", "Show what a search would do and cost."),
    "service": ("operations.service:service", "Run one service by itself, on any machine."),
    "cluster": (
        "operations.cluster.command:cluster",
        "Make, watch and upgrade a ledger on Kafka.",
    ),
    "schema": ("commands.about:schema", "Print the JSON Schema of the experiment file."),
    "version": ("commands.about:version", "Print the version."),
    "completion": ("commands.about:completion", "Print a shell's completion script."),
}
"""Module and name of each command in this package, and its help, in the order of `rung --help`."""

COMMANDS: Final = {
    name: _Entry(f"rung.cli.{home}", text) for name, (home, text) in _COMMANDS.items()
}


@click.command(
    cls=LazyGroup,
    entries=COMMANDS,
    epilog=exit_code.HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def rung() -> None:
    """Train deep-learning models, search their hyperparameters, and prove how it came about.

    `rung up` starts it on this machine; `rung submit experiment.yaml folder -f` trains.

    Nearly every command takes --json. Commands that ask a server take --data (or RUNG_DATA), or
    --url and --token (RUNG_URL, RUNG_TOKEN).
    """
