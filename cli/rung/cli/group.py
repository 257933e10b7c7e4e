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
    "login": ("identity.login:login", "Sign in at a server, and keep the session."),
    "logout": ("identity.login:logout", "End the session at a server."),
    "whoami": ("identity.login:whoami", "Show who you are at a server."),
    "token": ("identity.token:token", "Create, list, rotate and revoke tokens for programs."),
    "status": ("commands.status:status", "Show whether Rung runs, its slots and queue."),
    "preview": ("commands.preview:preview", "Show what a search would do and cost."),
    "submit": ("commands.submit:submit", "Submit an experiment."),
    "list": ("commands.experiments:list_", "List experiments, the newest first."),
    "show": ("commands.experiments:show", "Show an experiment or a trial."),
    "open": ("commands.experiments:open_", "Open the page in a browser."),
    "wait": ("commands.wait:wait", "Wait until an experiment ended."),
    "logs": ("commands.logs:logs", "Print the log lines of trials."),
    "log": ("commands.log:log", "Show who asked for what, and when."),
    "best": ("commands.experiments:best", "Show the best trial and its checkpoint."),
    "tensorboard": ("commands.tensorboard:tensorboard", "Show curves in TensorBoard."),
    "pause": ("commands.change.control:pause", "Have an experiment give its slots back and wait."),
    "resume": ("commands.change.control:resume", "Have a paused experiment go on."),
    "cancel": ("commands.change.control:cancel", "End an experiment, checkpointing first."),
    "kill": ("commands.change.control:kill", "End an experiment at once."),
    "trial": ("commands.change.control:trial", "Move a trial to another agent, or end it."),
    "set": ("commands.change.resources:set_", "Change an experiment's priority, limit or pool."),
    "extend": ("commands.change.extend:extend", "Give a search more trials, or a longer length."),
    "config": ("teams.config_inputs:config", "Show what an experiment file becomes, and why."),
    "template": ("teams.config_inputs:template", "Set templates of experiment files."),
    "policy": ("teams.config_inputs:policy", "Set defaults, constraints and invariants."),
    "secret": ("teams.config_inputs:secret", "Set secrets of a workspace."),
    "webhook": ("teams.webhooks:webhook", "Tell others of what happens: webhooks, e-mail."),
    "search": ("teams.searches:search", "Save searches for `rung list --saved`."),
    "fork": ("commands.fork:fork", "Submit an experiment once more, with changes."),
    "code": ("commands.code:code", "List, print or fetch an experiment's code as it ran."),
    "diff": ("commands.code:diff", "Compare two experiments: configuration and code."),
    "checkpoints": ("commands.checkpoints:checkpoints", "List checkpoints."),
    "download": ("commands.checkpoints:download", "Fetch a checkpoint's files."),
    "model": ("teams.models:model", "Register checkpoints as versions of models."),
    "edit": ("commands.change.description:edit", "Change an experiment's name, labels or notes."),
    "move": ("commands.change.move:move", "Move experiments to another workspace or project."),
    "archive": ("commands.change.description:archive", "Leave experiments out of lists."),
    "unarchive": (
        "commands.change.description:unarchive",
        "Have archived experiments in lists again.",
    ),
    "retention": ("commands.change.deletion:retention", "Change which checkpoints are kept."),
    "delete": ("commands.change.deletion:delete", "Delete experiments or checkpoints."),
    "restore": ("commands.change.deletion:restore", "Take deletions of experiments back."),
    "user": ("teams.people:user", "Create, change and deactivate users and service accounts."),
    "group": ("teams.people:group", "Create and change groups of users."),
    "workspace": ("teams.places:workspace", "Create, change and archive workspaces."),
    "project": ("teams.places:project", "Create, change, move and archive projects."),
    "role": ("teams.roles:role", "Show what roles may, give them and take them."),
    "gc": ("operations.gc:gc", "Delete log lines and checkpoints that are needed no longer."),
    "audit": ("operations.ledger.audit:audit", "Decide every decision again, and compare."),
    "verify": (
        "operations.ledger.verify:verify",
        "Check that no record was altered, by the seals.",
    ),
    "ledger": ("operations.ledger.command:ledger", "Read, export, import and archive the ledger."),
    "pool": ("operations.pool:pool", "Choose the scheduling policy of a pool."),
    "deadletter": (
        "operations.deadletter:deadletter",
        "List, retry and drop messages that a component rejected.",
    ),
    "objects": ("operations.objects:objects", "Copy checkpoints and code to another store."),
    "secrets": ("operations.secrets_command:secrets", "Change the key of encrypted secrets."),
    "metrics": ("operations.metrics:metrics", "Migrate the tables of metrics and logs."),
    "service": ("operations.service:service", "Run one service by itself, on any machine."),
    "cluster": (
        "operations.cluster.command:cluster",
        "Make, watch and upgrade a ledger on Kafka.",
    ),
    "report": ("commands.trial_script:report", "Report metrics, from a script of a trial."),
    "checkpoint": (
        "commands.trial_script:checkpoint",
        "Store and restore files, from a script of a trial.",
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
@click.version_option(package_name="rung", prog_name="rung", message="%(prog)s %(version)s")
def rung() -> None:
    """Train deep-learning models, search their hyperparameters, and prove how it came about.

    `rung up` starts it on this machine; `rung submit experiment.yaml folder -f` trains.

    Where a command takes an ID, the first letters of one do, and so does an experiment's name:
    `rung show k3v9`, `rung show mnist`, and of a trial `rung show mnist.7`.

    Nearly every command takes --json. Commands that ask a server take --data (or RUNG_DATA), or
    --url and --token (RUNG_URL, RUNG_TOKEN).
    """
