"""The entrypoint: the command that trains one trial, and whether its script is in the code."""

import posixpath
import re
import shlex
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from rung.config.code_archive import CodeArchive
from rung.config.problem import shortened

_COMMAND_LENGTH: Final = 100
"""Letters of a command that a refusal spells out."""
_TRIAL_CLASS: Final = re.compile(r"\s*[A-Za-z_][\w.]*:[A-Za-z_]\w*\s*")
_DETERMINED: Final = re.compile(r"(?<!\S)-m\s+(?P<module>determined(?:\.\w+)*)(?!\w)\s*")
_OPTION: Final = re.compile(r"-\w")
_INTERPRETER: Final = re.compile(r"\S*python[\d.]*")
_OPTIONS_MAX: Final = 8
"""Options of an interpreter that are looked at."""
_LAUNCHERS: Final = {
    "determined.launch.torch_distributed": "",
    "determined.launch.deepspeed": "",
    "determined.launch.tensorflow": " with `distributed: {launcher: tensorflow}`",
    "determined.launch.horovod": " with `distributed: {launcher: horovod}`",
    "determined.launch.autohorovod": " with `distributed: {launcher: horovod}`",
}
"""Launcher of Determined → what the experiment file needs beside the script's command."""
_SHELL_SYNTAX: Final = re.compile(r"[|&;<>()$`\\*?\[\]#~{}!\n=]")
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")


def _command(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise _refused("must be a command, such as `python3 train.py`")
    if isinstance(value, str) and _TRIAL_CLASS.fullmatch(value):
        raise _refused(
            "`module:Class` is no longer run; write the command that starts the training, such as"
            " `python3 train.py`"
        )
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        if value and not value[0].strip():
            raise _refused("must begin with a command, such as `[python3, train.py]`")
        _check_launcher(shlex.join(value))
    elif isinstance(value, str):
        _check_launcher(value)
    return value


def _check_launcher(command: str) -> None:
    """Refuse a command of Determined, which could not run, with the one to write."""
    found = _DETERMINED.search(command)
    if found is None:
        return
    module, start = found["module"], _start_of(command, found.start())
    launched = " ".join(_launched(command[:start], command[found.end() :]).split())
    wanted = f"`{launched}`"
    if len(launched) > _COMMAND_LENGTH:
        launcher = command[start : found.end()]
        wanted = f"the command without `{shortened(' '.join(launcher.split()))}`"
    if module not in _LAUNCHERS:
        raise _refused(
            f"`{shortened(module)}` is a part of Determined; write the command that starts the"
            " training, such as `python3 train.py`"
        )
    raise _refused(
        f"`{module}` is a launcher of Determined; here each trial's processes, one per slot, are"
        f" started without one: write {wanted}{_LAUNCHERS[module]}"
    )


def _start_of(command: str, module: int) -> int:
    """Return where the interpreter begins whose option `-m` begins at `module`."""
    words = command[:module].rsplit(None, _OPTIONS_MAX)[-_OPTIONS_MAX:]
    while words and _OPTION.fullmatch(words[-1]):
        words.pop()
    word = re.split("['\"]", words[-1])[-1] if words else ""
    return command.rindex(word, 0, module) if _INTERPRETER.fullmatch(word) else module


def _launched(before: str, rest: str) -> str:
    """Return what a launcher starts, or a command such as there might be."""
    if rest.startswith("-"):  # the launcher's own options
        rest = re.split(r"(?:^|\s)--\s+", rest, maxsplit=1)[-1]
    word, *_ = [*rest.split(None, 1), ""]
    if not word or word.startswith("-") or _TRIAL_CLASS.fullmatch(word.strip("'\"")):
        return "python3 train.py"
    return before + ("python3 " if word.endswith(".py") else "") + rest


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("entrypoint", "{message}", {"message": message})


Entrypoint = Annotated[
    Annotated[str, BeforeValidator(_command), Tag("<text>")]
    | Annotated[list[str], BeforeValidator(_command), Field(min_length=1), Tag("<list>")],
    Discriminator(lambda value: "<list>" if isinstance(value, list) else "<text>"),
]


def missing_script(entrypoint: Any, code: CodeArchive | None) -> str | None:
    """Return the script that an entrypoint runs, if the code lacks it; else None.

    Recognised are `python train.py` and `./train.sh`, which run in the code folder.
    """
    script = _script_of(entrypoint)
    if script is None or script.startswith(("/", "..")):
        return None
    return None if code is not None and code.may_hold(script) else script


def _script_of(entrypoint: Any) -> str | None:
    words = _words(entrypoint)
    if not words:
        return None
    if words[0].startswith("./"):
        return posixpath.normpath(words[0])
    if not _PYTHON.fullmatch(words[0]):
        return None
    rest = [word for word in words[1:] if word != "-u"]
    return posixpath.normpath(rest[0]) if rest and rest[0].endswith(".py") else None


def _words(entrypoint: Any) -> list[str]:
    """Return the words of a command, none where only a shell can split it."""
    if isinstance(entrypoint, list):
        return entrypoint
    if not isinstance(entrypoint, str) or _SHELL_SYNTAX.search(entrypoint):
        return []
    try:
        return shlex.split(entrypoint)
    except ValueError:
        return []
