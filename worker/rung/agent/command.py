"""Reads an experiment's `entrypoint`: what becomes of it in a forked process.

`python train.py …` and `python -m package.module …` run inside the fork, which has the
frameworks imported already. Whatever else takes the fork's place as a program: a list directly,
a string through `/bin/sh -c`. So does Python where a fork could not honour what was asked:
interpreter flags, and environment variables that an interpreter or the loader reads at its start.
"""

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rung.agent.wire import Command

_SHELL_SYNTAX: Final = re.compile(r"[|&;<>()$`\\*?\[\]#~{}!\n]")
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_AT_START: Final = ("PYTHON", "LD_", "OPENBLAS_", "GOMP_", "KMP_", "MALLOC_", "GLIBC_")
"""Prefixes of variables that act when an interpreter or a library is loaded, not later."""
_HARMLESS: Final = frozenset({"PYTHONUNBUFFERED"})


class InvalidEntrypoint(ValueError):
    """An entrypoint that cannot be run; its message is written for the experiment's author."""


def command_of(entrypoint: Any, variables: Mapping[str, str]) -> Command:
    """Return what to execute for an entrypoint.

    Args:
        entrypoint: the experiment's `entrypoint`, a string or a list of strings.
        variables: the environment variables that the experiment sets.

    Raises:
        InvalidEntrypoint: there is none, or it is of another type.
    """
    words = _words(entrypoint)
    if words is None:
        return Command("execute", ["/bin/sh", "-c", entrypoint])
    forked = None if _needs_fresh_interpreter(variables) else _inside_fork(words)
    return forked or _program(words)


def _words(entrypoint: Any) -> list[str] | None:
    """Return the words of the command, None if it takes a shell to tell them."""
    match entrypoint:
        case str() if entrypoint.strip():
            if _SHELL_SYNTAX.search(entrypoint):
                return None
            try:
                words = shlex.split(entrypoint)
            except ValueError as error:
                raise InvalidEntrypoint(f"entrypoint {entrypoint!r}: {error}") from error
            return None if "=" in words[0] else words
        case [_, *_] if all(isinstance(word, str) and "\0" not in word for word in entrypoint):
            return list(entrypoint)
        case _:
            raise InvalidEntrypoint(
                f"entrypoint {entrypoint!r}: give a command such as `python3 train.py`, "
                "or a list of its words"
            )


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
    """Return a program to execute; a bare `python` is the one that the agent runs on."""
    first = sys.executable if _PYTHON.fullmatch(words[0]) else words[0]
    return Command("execute", [first, *words[1:]])


def _needs_fresh_interpreter(variables: Mapping[str, str]) -> bool:
    """Tell whether a variable comes too late for a process that is forked."""
    return any(
        name not in _HARMLESS and (name.startswith(_AT_START) or name == "CUDA_VISIBLE_DEVICES")
        for name in variables
    )


def variables_of(config: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the variables of `environment.environment_variables` for slots of a kind.

    They are a list of `NAME=value`, or such a list per kind of device; `gpu` is an older word
    for `cuda`.
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
    """Return a PATH on which `python` is the interpreter that the agent runs on."""
    own = str(Path(sys.executable).parent)
    return f"{own}:{path}" if path else f"{own}:/usr/local/bin:/usr/bin:/bin"
