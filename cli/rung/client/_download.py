"""Brings a checkpoint's files into a folder: all of them, verified, or none."""

import asyncio
import hashlib
import secrets
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import IO, Final

import aiohttp

from rung.answer import CheckpointDetail, CheckpointFile
from rung.client._error import ClientError, Unreachable
from rung.client._transport import Transport

_CHUNK: Final = 1024 * 1024
_SILENCE_S: Final = 60.0
_TRIES: Final = 3
_ARCHIVE: Final = "archive.tar"


async def download(transport: Transport, checkpoint: CheckpointDetail, folder: Path) -> None:
    """Write a checkpoint's files to a folder that does not exist yet, or is empty.

    Raises:
        ClientError: the folder is in use, the connection broke, or a file is damaged.
    """
    draft = await asyncio.to_thread(_make_draft, folder)
    try:
        await _fetch(transport, checkpoint.id, draft / _ARCHIVE)
        await asyncio.to_thread(_unpack, draft, folder, checkpoint)
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


def _make_draft(folder: Path) -> Path:
    """Return a new folder beside the one that is wanted."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClientError(f"{folder} is not empty; choose another folder with --output")
    try:
        draft = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
        draft.mkdir(parents=True)
    except OSError as error:
        raise ClientError(f"{folder} cannot be made: {error.strerror}") from error
    return draft


async def _fetch(transport: Transport, checkpoint_id: str, target: Path) -> None:
    path = f"/checkpoints/{checkpoint_id}/archive"
    for attempt in range(1, _TRIES + 1):
        try:
            async with transport.open(path, silence_s=_SILENCE_S) as stream:
                with target.open("wb") as file:
                    await _copy(stream, file)
                return
        except (aiohttp.ClientError, TimeoutError) as error:
            if attempt == _TRIES:
                raise Unreachable(
                    f"the connection broke {_TRIES} times in the middle of checkpoint"
                    f" {checkpoint_id} ({error}); try again"
                ) from error


async def _copy(stream: aiohttp.StreamReader, file: IO[bytes]) -> None:
    async for chunk in stream.iter_chunked(_CHUNK):
        await asyncio.to_thread(file.write, chunk)


def _unpack(draft: Path, target: Path, checkpoint: CheckpointDetail) -> None:
    files = draft / "files"
    files.mkdir()
    try:
        with tarfile.open(draft / _ARCHIVE) as opened:
            clean = partial(_without_top, top=f"{checkpoint.id}/")
            opened.extractall(files, filter=clean)  # noqa: S202 - filtered as tarfile does
    except (tarfile.TarError, EOFError) as error:
        raise ClientError(f"checkpoint {checkpoint.id} did not arrive whole: {error}") from error
    for expected in checkpoint.files:
        _check(checkpoint.id, files, expected)
    if target.exists():
        target.rmdir()
    files.rename(target)


def _without_top(member: tarfile.TarInfo, target: str, *, top: str) -> tarfile.TarInfo | None:
    """Unpack the folder that the archive holds into the target itself, safely."""
    return tarfile.data_filter(member.replace(name=member.name.removeprefix(top)), target)


def _check(checkpoint_id: str, folder: Path, expected: CheckpointFile) -> None:
    path = folder / expected.name
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise ClientError(f"checkpoint {checkpoint_id}: {expected.name} is missing")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected.sha256:
        raise ClientError(
            f"checkpoint {checkpoint_id}: {expected.name} is damaged (its digest is"
            f" {found[:12]}…, not {expected.sha256[:12]}…)"
        )
