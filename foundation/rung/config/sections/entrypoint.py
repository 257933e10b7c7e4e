"""Checks whether the script of an entrypoint is in the submitted code."""

import posixpath
import re
import shlex
from typing import Any, Final

from rung.config.code_archive import CodeArchive

_SHELL_SYNTAX: Final = re.compile(r"[|&;<>()$`\\*?\[\]#~{}!\n=]")
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")


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
