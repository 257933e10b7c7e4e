"""The integrity check of a ledger's file, fast enough for every start.

A small file is checked page by page. A large one is checked for truncation: each page that the
database counts must lie in the file or in the write-ahead log. SQLite itself notices a page that
is missing from the file's end only when it is read, if the write-ahead log holds a newer header.
"""

import os
import sqlite3
import struct
from pathlib import Path
from typing import Final

from rung.events.errors import LedgerDamaged
from rung.ledger.sqlite.errors import RESCUE

_SMALL: Final = 32 << 20
_WAL_HEADER: Final = struct.Struct(">IIIIIIII")
_FRAME_HEADER: Final = struct.Struct(">IIIIII")
_LOCK_BYTE: Final = 1 << 30
"""SQLite never writes the page that holds this byte."""


def check_size(path: Path) -> None:
    """Refuse an empty file; call before SQLite, which would make it a new database."""
    if path.stat().st_size == 0:
        raise LedgerDamaged(
            f"{path} is empty: it was truncated. Restore the folder from a backup, or remove the "
            "file to begin with an empty ledger"
        )


def check_integrity(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a truncated or damaged file; call while no process writes."""
    (page_size,) = database.execute("PRAGMA page_size").fetchone()
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    size = path.stat().st_size
    if size < pages * page_size:
        in_log = _pages_in_log(path, page_size)
        missing = [
            page
            for page in range(size // page_size + 1, pages + 1)
            if page not in in_log and page != _LOCK_BYTE // page_size + 1
        ]
        if missing:
            raise LedgerDamaged(
                f"{path} is truncated: {len(missing)} of its {pages} pages of {page_size} bytes "
                f"are missing, from page {missing[0]} on. {RESCUE}"
            )
    if pages * page_size <= _SMALL:
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise LedgerDamaged(f"{path} is damaged ({verdict}). {RESCUE}")


def _pages_in_log(path: Path, page_size: int) -> set[int]:
    """Return which pages the write-ahead log holds in its current generation."""
    pages: set[int] = set()
    try:
        log = os.open(path.with_name(path.name + "-wal"), os.O_RDONLY)
    except FileNotFoundError:
        return pages
    try:
        header = os.pread(log, _WAL_HEADER.size, 0)
        if len(header) < _WAL_HEADER.size:
            return pages
        salts = _WAL_HEADER.unpack(header)[4:6]
        offset = _WAL_HEADER.size
        while len(frame := os.pread(log, _FRAME_HEADER.size, offset)) == _FRAME_HEADER.size:
            page, _, *frame_salts = _FRAME_HEADER.unpack(frame)[:4]
            if tuple(frame_salts) != salts:
                break
            pages.add(page)
            offset += _FRAME_HEADER.size + page_size
    finally:
        os.close(log)
    return pages
