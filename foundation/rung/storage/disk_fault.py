"""Errors of a file system, told by their numbers or their words from those of its user."""

import errno
import os
import re
from typing import Final

FAULTS: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.ESTALE,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOTCONN,
        errno.EREMOTEIO,
    }
)
"""Errors that are the file system's fault, not the caller's."""

_WORDS: Final = re.compile(
    "|".join(
        (
            *(re.escape(f"[Errno {number}]") for number in sorted(FAULTS)),
            *(re.escape(os.strerror(number)) for number in sorted(FAULTS)),
            "the disk is full",
            "the disk quota is used up",
            "the file system is read-only",
            "disk I/O error",
            "database or disk is full",
            "StorageFull",
            "PytorchStreamWriter failed writing file",
        )
    )
)


def words_of(error: BaseException) -> str:
    """Return an error's message, and that of the disk failure that it follows from, if any."""
    text, current = str(error), error.__cause__ or error.__context__
    while current is not None and not tells_of_fault(text):
        if tells_of_fault(str(current)):
            text = f"{text} ({current})"
        current = current.__cause__ or current.__context__
    return text


def tells_of_fault(text: str) -> bool:
    """Return whether a text, such as a traceback's last line, is about a failed file system."""
    return _WORDS.search(text) is not None
