"""The command `rung` and its subcommands, each imported when it is called."""

from typing import Final

import click

from rung.cli import exit_code
from rung.cli.lazy_group import Entry, LazyGroup

COMMANDS: Final = {
    "up": Entry("rung.cli.up:up", "Start Rung on this machine: services, agent and page."),
    "down": Entry("rung.cli.down:down", "Stop the Rung of a data folder."),
    "status": Entry("rung.cli.status:status", "Show whether Rung runs, its slots and queue."),
    "submit": Entry("rung.cli.submit:submit", "Submit an experiment."),
    "list": Entry("rung.cli.experiments:list_", "List experiments, the newest first."),
    "show": Entry("rung.cli.experiments:show", "Show an experiment or a trial."),
    "wait": Entry("rung.cli.wait:wait", "Wait until an experiment ended."),
    "logs": Entry("rung.cli.logs:logs", "Print what trials printed."),
    "gc": Entry("rung.cli.gc:gc", "Delete printed lines that are needed no longer."),
    "pause": Entry("rung.cli.control:pause", "Have an experiment give its slots back and wait."),
    "resume": Entry("rung.cli.control:resume", "Have a paused experiment go on."),
    "cancel": Entry("rung.cli.control:cancel", "End an experiment, checkpointing first."),
    "kill": Entry("rung.cli.control:kill", "End an experiment at once."),
    "trial": Entry("rung.cli.trial:trial", "Move a trial to another agent."),
    "pool": Entry("rung.cli.pool:pool", "Choose by which policy a pool's slots are given."),
    "deadletter": Entry(
        "rung.cli.deadletter:deadletter", "See to messages that a service could not take in."
    ),
    "best": Entry("rung.cli.experiments:best", "Show the best trial and its checkpoint."),
    "checkpoints": Entry("rung.cli.checkpoints:checkpoints", "List checkpoints."),
    "download": Entry("rung.cli.checkpoints:download", "Fetch a checkpoint's files."),
    "audit": Entry("rung.cli.audit:audit", "Decide every decision again, and compare."),
    "verify": Entry("rung.cli.verify:verify", "Hold what is on record against its seals."),
    "ledger": Entry("rung.cli.ledger:ledger", "Read, export, import and archive the ledger."),
    "objects": Entry("rung.cli.objects:objects", "Copy checkpoints and code to another store."),
    "metrics": Entry("rung.cli.metrics:metrics", "Look after the tables of metrics and logs."),
    "tensorboard": Entry("rung.cli.tensorboard:tensorboard", "Show curves in TensorBoard."),
    "report": Entry("rung.cli.report:report", "Report metrics, from a script of a trial."),
    "checkpoint": Entry("rung.cli.keep:checkpoint", "Keep files, from a script of a trial."),
    "preview": Entry("rung.cli.preview:preview", "Show what a search would do and cost."),
    "service": Entry("rung.cli.service:service", "Run one service by itself, on any machine."),
    "cluster": Entry("rung.cli.cluster:cluster", "Make and watch a ledger on Kafka."),
    "schema": Entry("rung.cli.about:schema", "Print the JSON Schema of the experiment file."),
    "version": Entry("rung.cli.about:version", "Print the version."),
    "completion": Entry("rung.cli.about:completion", "Print a shell's completion script."),
}
"""In the order in which `rung --help` lists them."""


@click.command(
    cls=LazyGroup,
    entries=COMMANDS,
    epilog=exit_code.HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def rung() -> None:
    """Train deep-learning models, search their hyperparameters, and prove how it came about.

    `rung up` starts it on this machine; `rung submit experiment.yaml folder -f` trains.

    Nearly every command takes --json; those that ask a Rung take --data (or RUNG_DATA), or --url
    and --token (RUNG_URL, RUNG_TOKEN), to say which one is meant.
    """
