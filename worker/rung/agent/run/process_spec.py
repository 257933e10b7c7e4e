"""Process spec: the command, environment and threads that a process is launched with.

`python train.py …` and `python -m package.module …` run inside the fork, which has the frameworks
imported already. Everything else is executed as a program: a list of words directly, a string as a
line of a shell. So is Python with what cannot take effect in a fork: interpreter flags, and
environment variables that the interpreter, the C library or an imported module may have read
already. Which these are cannot be listed, so those that are known to act in a fork are
(`_ACT_IN_A_FORK`); any other gets an interpreter of its own, which costs the import of its
frameworks.

The shell is `bash -o pipefail` where there is a bash: `train.py | tee log` fails where `train.py`
does. Jobs that a line leaves in the background are waited for, and their failure is the line's,
unless it waits by itself.
"""

import functools
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rung.agent.forkserver.messages import Command, Launch, View
from rung.agent.forkserver.threads import threads_of
from rung.agent.slots import Device
from rung.core.ipc.environment import (
    ALLOCATION_VARIABLE,
    SOCKET_VARIABLE,
    TOKEN_VARIABLE,
    UNATTENDED_VARIABLE,
    Place,
    run_variables,
)
from rung.events.trial import RunSpec

_SHELL_SYNTAX: Final = re.compile(r"[|&;<>()$`\\*?\[\]#~{}!\n]")
_BACKGROUND: Final = re.compile(r"(?<![&<>|])&(?![&>])")
_WAITS: Final = re.compile(r"\bwait\b")
_BASH_JOBS: Final = (
    "trap 'rung_jobs[${!:-0}]=' DEBUG; ",
    """
code=$?; trap - DEBUG; rung_jobs[${!:-0}]=
for job in ${!rung_jobs[@]}; do [ $job = 0 ] || wait $job || code=$?; done; exit $code""",
)
"""What stands before and behind a line with jobs in the background: bash notes the process id of
each before the next command, and waits for all of them, those that have ended included."""
_SH_JOBS: Final = ("", '\ncode=$?; [ -z "$!" ] || wait $! || code=$?; wait; exit $code')
"""The same for a shell that can only tell how the last of them ended."""
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_ACT_IN_A_FORK: Final = (
    # Read by the platform, or when they are used.
    "PYTHONUNBUFFERED$",
    "OMP_NUM_THREADS$",
    "PATH$",
    "HOME$",
    "USER$",
    "LOGNAME$",
    "CUDA_LAUNCH_BLOCKING$",
    "CUBLAS_WORKSPACE_CONFIG$",
    "TORCH_HOME$",
    "TORCH_EXTENSIONS_DIR$",
    "MASTER_",
    "NCCL_",
    "GLOO_",
    # Of libraries that the fork servers do not import.
    "AWS_",
    "CLEARML_",
    "COMET_",
    "HF_",
    "HUGGING",
    "KAGGLE_",
    "KERAS_",
    "MLFLOW_",
    "NEPTUNE_",
    "TF_",
    "TOKENIZERS_",
    "TRANSFORMERS_",
    "WANDB_",
)
"""Environment variables that take effect in a forked process: beginnings of names, or with a `$`
at the end whole names."""


class InvalidEntrypoint(ValueError):
    """An entrypoint that cannot be run; the message is for the experiment's author."""


class Identity(NamedTuple):
    """Identifies a process to its agent: run, token and rank."""

    process: str
    """Its name in the fork server."""
    allocation_id: str
    token: str
    place: Place
    socket: Path
    unattended_s: float = 0.0
    """How long it goes on without an agent."""


def launch_of(  # noqa: PLR0913, PLR0917 - all that a process depends on
    spec: RunSpec,
    identity: Identity,
    held: list[int],
    slots: list[Device],
    folder: Path,
    network: Mapping[str, str],
    view: View | None = None,
    user: int | None = None,
) -> Launch:
    """Return the launch of a process.

    Args:
        spec: the run.
        identity: of the process.
        held: ids of the slots that the run holds on this agent.
        slots: all slots of the agent.
        folder: the run's working folder.
        network: the variables by which its framework finds the other ranks.
        view: its file system view, in its own namespaces.
        user: its own user id; None: the agent's.

    Raises:
        InvalidEntrypoint: the experiment's entrypoint cannot be run.
    """
    place = identity.place
    devices = [slot for slot in slots if slot.id in held]
    kind = devices[0].kind if devices else "cpu"
    own = variables_of(spec.config, kind)
    share = len(held) // place.local_size
    threads = threads_of(held=share, slots=len(slots), variables=own)
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **_home_of(user, folder),
        **{name: value for name, value in network.items() if name not in own},
        **own,
        "PATH": search_path(own.get("PATH")),
        **run_variables(spec),
        SOCKET_VARIABLE: str(identity.socket),
        ALLOCATION_VARIABLE: identity.allocation_id,
        TOKEN_VARIABLE: identity.token,
        UNATTENDED_VARIABLE: str(identity.unattended_s),
        **place.variables(),
    }
    if any(slot.kind == "cuda" for slot in slots):  # a run without slots sees no device
        visible = devices if "TF_CONFIG" not in network else devices[place.local_rank :][:1]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.visible_as for device in visible)
    command = command_of(spec.config.get("entrypoint"), own)
    return Launch(identity.process, command, environment, str(folder), threads, view, user)


def _home_of(user: int | None, folder: Path) -> dict[str, str]:
    """Return the variables for a user id without an entry in the user database.

    Libraries keep their caches in the home folder, or name them after the user.
    """
    if user is None:
        return {}
    name = f"trial-{user}"
    return {"HOME": str(folder), "USER": name, "LOGNAME": name}


def command_of(entrypoint: Any, variables: Mapping[str, str]) -> Command:
    """Return what to execute for an entrypoint.

    Args:
        entrypoint: the experiment's `entrypoint`, a string or a list of strings.
        variables: the environment variables that the experiment sets.

    Raises:
        InvalidEntrypoint: there is none, or it is of another type.
    """
    words = _words(entrypoint)
    forked = None if words is None else _inside_fork(words)
    if forked is not None and words is not None:
        return _program(words) if _needs_fresh_interpreter(variables) else forked
    if isinstance(entrypoint, str):
        return Command("execute", _shell_line(entrypoint))
    assert words is not None, "a list has words"
    return _program(words)


def _words(entrypoint: Any) -> list[str] | None:
    """Return the words of the command, None if only a shell can split it."""
    match entrypoint:
        case str() if entrypoint.strip() and "\0" not in entrypoint:
            if _SHELL_SYNTAX.search(entrypoint):
                return None
            try:
                return shlex.split(entrypoint)
            except ValueError as error:
                raise InvalidEntrypoint(f"entrypoint {entrypoint!r}: {error}") from error
        case [_, *_] if all(isinstance(word, str) and "\0" not in word for word in entrypoint):
            return list(entrypoint)
        case _:
            raise InvalidEntrypoint(
                f"entrypoint {entrypoint!r}: give a command such as `python3 train.py`, "
                "or a list of its words"
            )


def _shell_line(line: str) -> list[str]:
    """Return the shell that executes a line."""
    bash = _bash()
    if _BACKGROUND.search(line) and not _WAITS.search(line):
        before, behind = _BASH_JOBS if bash else _SH_JOBS
        line = f"{before}{line}{behind}"
    return [bash, "-o", "pipefail", "-c", line] if bash else ["/bin/sh", "-c", line]


@functools.cache
def _bash() -> str | None:
    return shutil.which("bash")


def _inside_fork(words: list[str]) -> Command | None:
    if not _is_python(words[0]):
        return None
    rest = words[1:]
    while rest and rest[0] == "-u":
        rest = rest[1:]
    match rest:
        case ["-m", module, *arguments]:
            return Command("module", [module, *arguments])
        case [script, *arguments] if script.endswith(".py") and not script.startswith("-"):
            return Command("script", [script, *arguments])
        case _:
            return None


def _is_python(word: str) -> bool:
    return bool(_PYTHON.fullmatch(word)) or word == sys.executable


def _program(words: list[str]) -> Command:
    """Return a program to execute; a bare `python` is the agent's interpreter."""
    first = sys.executable if _PYTHON.fullmatch(words[0]) else words[0]
    return Command("execute", [first, *words[1:]])


def _needs_fresh_interpreter(variables: Mapping[str, str]) -> bool:
    """Return whether a variable may take effect too late in a forked process."""
    acting = tuple(name for name in _ACT_IN_A_FORK if not name.endswith("$"))
    return any(
        f"{name}$" not in _ACT_IN_A_FORK and not name.startswith(acting) for name in variables
    )


def variables_of(config: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the variables in `environment.environment_variables` for a kind of slots.

    They are a list of `NAME=value`, or such a list per kind; `gpu` is the older name of `cuda`.
    """
    environment = config.get("environment")
    listed = environment.get("environment_variables") if isinstance(environment, dict) else None
    if isinstance(listed, dict):
        listed = listed.get(kind) or (listed.get("gpu") if kind == "cuda" else None)
    variables = {}
    for entry in listed or []:
        name, _, value = str(entry).partition("=")
        variables[name] = value
    return variables


def search_path(path: str | None) -> str:
    """Return a PATH on which `python` is the agent's interpreter."""
    own = str(Path(sys.executable).parent)
    return f"{own}:{path}" if path else f"{own}:/usr/local/bin:/usr/bin:/bin"
