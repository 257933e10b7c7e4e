"""Translates errors of SQLite and of the system into errors of ledgers, with advice."""

import errno
import sqlite3
from pathlib import Path
from typing import Final

from rung.events.errors import LedgerDamaged, LedgerError, LedgerUnavailable

BUSY_MS: Final = 10_000
"""How long a statement waits for a lock of another program."""

RESCUE: Final = (
    "Stop Rung, keep a copy of the file, and restore the folder from a backup, or save what is "
    "legible with `sqlite3 ledger.db .recover`"
)

_CODES: Final[dict[int, tuple[type[LedgerError], str]]] = {
    sqlite3.SQLITE_FULL: (
        LedgerUnavailable,
        "the disk of {path} is full; nothing of this was written. Free some space and it goes on",
    ),
    sqlite3.SQLITE_IOERR: (
        LedgerUnavailable,
        "{path} could not be read or written ({error}). Is its disk full, failing or gone?",
    ),
    sqlite3.SQLITE_BUSY: (
        LedgerUnavailable,
        f"another program has kept {{path}} locked for {BUSY_MS // 1000} seconds",
    ),
    sqlite3.SQLITE_CORRUPT: (
        LedgerDamaged,
        f"{{path}} is truncated or damaged ({{error}}). {RESCUE}",
    ),
    sqlite3.SQLITE_NOTADB: (
        LedgerDamaged,
        "{path} is no SQLite database. Move it away, or name another data folder",
    ),
    sqlite3.SQLITE_READONLY: (
        LedgerError,
        "{path}: this user may not write there. Make it writable, or name another data folder",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        LedgerError,
        "{path} cannot be opened ({error}). May this user read and write the file and its folder?",
    ),
}

_ERRNOS: Final = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EACCES: sqlite3.SQLITE_READONLY,
    errno.EPERM: sqlite3.SQLITE_READONLY,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.ENOENT: sqlite3.SQLITE_CANTOPEN,
    errno.ENOTDIR: sqlite3.SQLITE_CANTOPEN,
    errno.EEXIST: sqlite3.SQLITE_CANTOPEN,
    errno.EISDIR: sqlite3.SQLITE_CANTOPEN,
}


def explain(error: sqlite3.Error | OSError, path: Path) -> LedgerError:
    """Return the ledger's error for one of SQLite or of the system."""
    if isinstance(error, OSError):
        code = _ERRNOS.get(error.errno or 0, sqlite3.SQLITE_IOERR)
    else:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    kind, text = _CODES.get(code, (LedgerUnavailable, "{path}: {error}"))
    return kind(text.format(path=path, error=error))
