"""The trail of reads: a line of JSON for each, in a file of its own.

Off unless a file is named. What writes is in the ledger, with its actor; the trail has who read
what. A line is put into a queue and written by a thread, so no request waits for the disk. A file
that has reached its size becomes FILE.1, and the older ones FILE.2 and so on.

Where the disk is full or fails, lines are lost: that is logged, counted and a problem in the
status, and reads go on; with `required` they are answered 503 from then on, until the trail can be
written again.
"""

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct

from rung.gateway.identity.principal import PRINCIPAL
from rung.gateway.problem import unavailable
from rung.runtime import now
from rung.runtime.metrics import catalog

_READING: Final = frozenset({"GET", "HEAD"})
_WAITING_MAX: Final = 50_000
_AGAIN_S: Final = 1.0
"""Between two attempts to write, after one that failed."""

_log = structlog.get_logger()
_encoder: Final = msgspec.json.Encoder()


class ReadTrailSettings(Struct, frozen=True, kw_only=True):
    """Where the trail is written.

    Raises:
        ValueError: a value is out of range.
    """

    path: Path
    bytes_max: int = 100 * 1024 * 1024
    """Of one file."""
    files: int = 10
    """How many are kept, the one that is written included."""
    required: bool = False
    """Whether reads are refused while the trail cannot be written."""

    def __post_init__(self) -> None:
        for name in ("bytes_max", "files"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a whole number from 1 on")


class ReadTrail:
    """The file that is written; `opened` while it is."""

    def __init__(self, settings: ReadTrailSettings) -> None:
        self._settings = settings
        self._lines: queue.Queue[bytes | None] = queue.Queue(_WAITING_MAX)
        self._file: IO[bytes] | None = None
        self._failed_at = -math.inf
        self.lost = 0
        """Lines that could not be written."""
        self.reason: str | None = None
        """Why the trail cannot be written now."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Write the lines while the context lasts; those that wait at its end are written."""
        thread = threading.Thread(target=self._run, name="read-trail", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._lines.put(None)
            thread.join()

    @property
    def is_refusing(self) -> bool:
        """Whether reads are refused now; one is let through each second, as an attempt."""
        return self._settings.required and self.reason is not None and not self._is_due

    def note(self, line: dict[str, Any]) -> None:
        """Have a line written; never blocks."""
        try:
            self._lines.put_nowait(_encoder.encode(line) + b"\n")
        except queue.Full:
            self._lose("the disk is too slow")

    def problem(self) -> str | None:
        """Return why the trail has gaps, None while it is written."""
        if self.reason is None:
            return None
        lines = "1 read is" if self.lost == 1 else f"{self.lost:,} reads are"
        what = "reads are refused" if self._settings.required else "reads go on"
        where = f"read trail {self._settings.path}"
        return f"{where}: {self.reason}; {lines} missing in it, and {what}"

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._failed_at >= _AGAIN_S

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if self.reason is not None and not self._is_due:
                self._lose(self.reason)
                continue
            try:
                self._write(line)
            except OSError as error:
                self._failed_at = time.monotonic()
                self._close()
                self._lose(error.strerror or str(error))
            else:
                if self.reason is not None:
                    _log.warning("read trail is written again", lost=self.lost)
                self.reason = None
        self._close()

    def _lose(self, reason: str) -> None:
        if self.reason is None:
            _log.error("read trail not written", path=str(self._settings.path), reason=reason)
        self.reason = reason
        self.lost += 1
        catalog.READS_UNTRACED.inc()

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._open()
        elif self._file.tell() + len(line) > self._settings.bytes_max and self._file.tell():
            self._close()
            self._rotate()
            self._file = self._open()
        start = self._file.tell()
        try:
            self._file.write(line)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(start)  # no half of a line stays
            raise

    def _open(self) -> IO[bytes]:
        path = self._settings.path
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        found = open(descriptor, "ab", buffering=0)  # noqa: SIM115, PTH123 - closed by `_close`
        found.seek(0, os.SEEK_END)
        return found

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _rotate(self) -> None:
        path, last = self._settings.path, self._settings.files - 1
        if last == 0:
            path.unlink()
            return
        for number in range(last, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)


TRAIL: Final = web.AppKey("read_trail", ReadTrail)


def require_trail(trail: ReadTrail | None) -> Middleware:
    """Return a middleware that refuses reads where the trail must be written and cannot be."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if trail is not None and trail.is_refusing and _is_read(request):
            raise unavailable(f"reads are refused: {trail.problem()}")
        return await handler(request)

    return check


async def trace_read(request: web.Request, response: web.StreamResponse) -> None:
    """Note a read as its answer begins; of a stream, once."""
    trail = request.app.get(TRAIL)
    if trail is None or not _is_read(request):
        return
    principal, resource = request[PRINCIPAL], request.match_info.route.resource
    trail.note(
        {
            "time": now(),
            "actor": principal.user_id,
            "onbehalfof": principal.on_behalf_of,
            "via": principal.via,
            "method": request.method,
            "route": None if resource is None else resource.canonical,
            "object": dict(request.match_info),
            "query": request.query_string[:2_000],
            "status": response.status,
        }
    )


def _is_read(request: web.Request) -> bool:
    return request.method in _READING and PRINCIPAL in request
