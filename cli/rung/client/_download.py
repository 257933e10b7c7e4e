"""Downloads a checkpoint's files into a folder: all of them, verified, or none.

Each file is requested from the gateway, which sends it or redirects to the object store. Several
are downloaded at once; a broken download is resumed. Until all are complete they are in a
temporary folder beside the target; if the server stays unreachable, that folder is kept for the
next attempt.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Final

from rung.api import CheckpointDetail, CheckpointFile
from rung.client._error import ClientError, Unreachable
from rung.client._http import Answer, HttpError
from rung.client._transport import Transport
from rung.storage.checkpoint.digest import digest_file

_SILENCE_S: Final = 60.0
_TRIES: Final = 4
"""Requests of a file in a row without a byte received, after which the download fails."""
_WAIT_S: Final = 0.2
_AT_ONCE: Final = 4


async def download(
    transport: Transport, checkpoint: CheckpointDetail, folder: Path, *, path: str
) -> None:
    """Write a checkpoint's files to a folder that does not exist yet, or is empty.

    Args:
        transport: of the gateway.
        checkpoint: with the files that are wanted.
        folder: written to.
        path: below which its files are: that of the checkpoint, or of a version of a model.

    Raises:
        ClientError: the folder is in use, the connection broke, or a file is damaged.
    """
    part = await asyncio.to_thread(_make_temporary, folder, checkpoint.id)
    try:
        await _Download(transport, checkpoint, part, path).run()
        await asyncio.to_thread(_place, part, folder)
    except Unreachable:
        raise  # the next attempt resumes with the files in the temporary folder
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
        raise


async def check_listed(transport: Transport, checkpoint: CheckpointDetail, *, path: str) -> None:
    """Check that all of a checkpoint's files are listed.

    None are if it is deleted, or its manifest is missing or damaged: the gateway then refuses its
    archive with the reason.

    Raises:
        NotFound: it is deleted, or its manifest is missing.
        Conflict: its manifest is not the one on record.
        ClientError: other files are listed than were stored.
    """
    if checkpoint.state != "deleted" and len(checkpoint.files) == checkpoint.file_count:
        return
    async with transport.open(f"{path}/archive", silence_s=_SILENCE_S):
        raise ClientError(
            f"checkpoint {checkpoint.id}: the server lists {len(checkpoint.files)} of its"
            f" {checkpoint.file_count} files; nothing was downloaded"
        )


class _Download:
    """The download of one checkpoint."""

    def __init__(
        self, transport: Transport, checkpoint: CheckpointDetail, part: Path, path: str
    ) -> None:
        self._path = f"{path}/file"
        self._transport = transport
        self._checkpoint = checkpoint
        self._part = part
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._redirect = True
        """Whether to use the object store directly; not after it failed once."""

    async def run(self) -> None:
        """Download all files and verify them."""
        try:
            async with asyncio.TaskGroup() as group:
                for file in self._checkpoint.files:
                    group.create_task(self._download(file))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _download(self, file: CheckpointFile) -> None:
        target = self._part / file.name
        if not target.resolve().is_relative_to(self._part.resolve()):
            raise ClientError(f"checkpoint {self._checkpoint.id}: {file.name!r} is no file's name")
        async with self._places:
            await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
            with target.open("ab") as opened:
                await self._fill(file, opened)
            await asyncio.to_thread(self._check, target, file)

    async def _fill(self, file: CheckpointFile, target: IO[bytes]) -> None:
        """Append the rest of a file; retry as long as bytes are received."""
        tries = 0
        while (there := target.tell()) < file.size_bytes:
            trouble = ""
            try:
                trouble = await self._resume(file, target)
            except (HttpError, TimeoutError) as error:
                trouble = str(error) or type(error).__name__
            finally:
                target.flush()
            tries = tries + 1 if target.tell() <= there else 0
            if tries == _TRIES:
                raise Unreachable(
                    f"the connection broke {_TRIES} times in the middle of {file.name} of"
                    f" checkpoint {self._checkpoint.id} ({trouble}); the same command goes on from"
                    " there"
                )
            if trouble:
                await asyncio.sleep(tries * _WAIT_S)

    async def _resume(self, file: CheckpointFile, target: IO[bytes]) -> str:
        """Request the rest of a file and append it; return what went wrong, if known."""
        begin = target.tell()
        async with self._answer(file, begin) as response:
            if response is None:
                return "the object store does not answer"
            if begin and response.status != 206:
                target.truncate(0)  # the answer begins at the first byte
                target.seek(0)
            async for chunk in response.chunks():
                await asyncio.to_thread(target.write, chunk)
        return "the answer ended early" if target.tell() < file.size_bytes else ""

    @contextlib.asynccontextmanager
    async def _answer(self, file: CheckpointFile, begin: int) -> AsyncIterator[Answer | None]:
        """Open the file from a byte on; yield None if the object store failed."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        query = {"name": file.name, "redirect": "true" if self._redirect else "false"}
        async with contextlib.AsyncExitStack() as stack:
            response = await stack.enter_async_context(
                self._transport.open(
                    self._path, query=query, headers=headers, silence_s=_SILENCE_S
                )
            )
            if response.status not in {302, 307}:
                yield response
                return
            url = response.headers["location"]
            try:
                found = await stack.enter_async_context(
                    self._transport.elsewhere(url, headers=headers, silence_s=_SILENCE_S)
                )
            except (HttpError, TimeoutError):
                found = None
            if found is None or found.status not in {200, 206}:
                self._redirect = False
                found = None
            yield found

    def _check(self, path: Path, expected: CheckpointFile) -> None:
        wanted = expected.blake3 or ""
        size, found = digest_file(path)
        if size != expected.size_bytes or found != wanted:
            raise ClientError(
                f"checkpoint {self._checkpoint.id}: {expected.name} is damaged (its digest is"
                f" {found[:12]}…, not {wanted[:12]}…)"
            )


def _make_temporary(folder: Path, checkpoint_id: str) -> Path:
    """Return the temporary folder beside the target, with files of an earlier attempt."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClientError(f"{folder} is not empty; choose another folder with --output")
    mark = hashlib.sha256(checkpoint_id.encode()).hexdigest()[:8]
    part = folder.parent / f".{folder.name}.{mark}.part"
    try:
        part.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"{folder} cannot be made: {error.strerror}") from error
    return part


def _place(part: Path, folder: Path) -> None:
    if folder.exists():
        folder.rmdir()
    os.replace(part, folder)  # noqa: PTH105 - a folder
