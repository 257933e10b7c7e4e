"""`rung objects copy`: checkpoints, code, configurations and encrypted secrets."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from rung.cli.exit_code import FAILED, OK
from rung.cli.output import counted, print_json, printable, size
from rung.events import RungError
from rung.secrets.secret_store import PREFIX as SECRETS
from rung.storage import (
    FolderStore,
    ObjectDamaged,
    ObjectMissing,
    ObjectStore,
    areas_of,
    copy_checkpoint,
    open_store,
)

_SUFFIXES: Final = {"code/": ".tar.gz", "configs/": ".json"}
"""Prefix and suffix of objects that are named by the digest of their bytes."""
_CHECKPOINTS: Final = "checkpoints/"
_MANIFEST: Final = "/manifest.json"


class Copied(NamedTuple):
    """Numbers of copied objects."""

    checkpoints: int
    code: int
    configs: int
    secrets: int
    size_bytes: int
    already: int
    """Objects that the target had already."""
    damaged: list[str]
    """One line for each damaged object, which was left out."""


@click.group()
def objects() -> None:
    """Copy the objects of an object store."""


@objects.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def copy(source: str, target: str, *, as_json: bool) -> int:
    """Copy checkpoints, code and configurations from a folder to another object store.

    FROM is the folder `objects` of a data folder, TO an URL such as s3://bucket/prefix. Each file
    is checked against its checkpoint's manifest. What is there already stays, so the same command
    resumes after an interruption. Exit code 1: some of it is damaged, and was left out.
    """
    copied = _copy(source, target, as_json=as_json)
    if as_json:
        print_json(copied._asdict())
    else:
        click.echo(
            f"{counted(copied.checkpoints, 'checkpoint')}, {counted(copied.code, 'code archive')}"
            f", {counted(copied.configs, 'configuration')} and"
            f" {counted(copied.secrets, 'encrypted secret')} copied ({size(copied.size_bytes)}),"
            f" {copied.already:,} were there already"
        )
    return FAILED if copied.damaged else OK


def _copy(source: str, target: str, *, as_json: bool) -> Copied:
    folder = _folder(source)
    store = open_store(target)
    try:
        copying = _Copying(folder, store, quiet=as_json)
        for prefix in _SUFFIXES:
            copying.named_by_digest(prefix)
        copying.secrets()
        for area in ("", *areas_of(folder)):
            copying.checkpoints(area)
        return copying.done()
    finally:
        store.close()


class _Copying:
    """A copy between two object stores, object by object."""

    def __init__(self, source: FolderStore, target: ObjectStore, *, quiet: bool) -> None:
        self._source = source
        self._target = target
        self._quiet = quiet
        self._counts = {
            "checkpoints": 0,
            "code": 0,
            "configs": 0,
            "secrets": 0,
            "size_bytes": 0,
            "already": 0,
        }
        self._damaged: list[str] = []

    def done(self) -> Copied:
        """Return the result."""
        return Copied(**self._counts, damaged=self._damaged)

    def named_by_digest(self, prefix: str) -> None:
        """Copy the objects of a prefix that are named by their digest."""
        there = {info.name: info.size_bytes for info in self._target.list(prefix)}
        for info in self._source.list(prefix):
            if there.get(info.name) == info.size_bytes:
                self._counts["already"] += 1
                continue
            path = self._source.root / info.name
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if info.name != f"{prefix}{digest}{_SUFFIXES[prefix]}":
                self._report(f"{info.name} holds other bytes than its name says ({digest[:12]}…)")
                continue
            self._target.put(info.name, path)
            self._counts[prefix.rstrip("/")] += 1
            self._counts["size_bytes"] += info.size_bytes

    def secrets(self) -> None:
        """Copy encrypted secrets, newer ones in place of older ones; the key is copied apart."""
        for info in self._source.list(SECRETS):
            data = self._source.read(info.name)
            if _holds(self._target, info.name, data):
                self._counts["already"] += 1
                continue
            self._target.put_bytes(info.name, data)
            self._counts["secrets"] += 1
            self._counts["size_bytes"] += info.size_bytes

    def checkpoints(self, area: str) -> None:
        """Copy the complete checkpoints of a storage area, the manifest of each last."""
        source, target = self._source.area(area), self._target.area(area)
        for experiment_id, checkpoint_id in _checkpoints_in(source):
            manifest = f"{_CHECKPOINTS}{experiment_id}/{checkpoint_id}{_MANIFEST}"
            if _holds(target, manifest, source.read(manifest)):
                self._counts["already"] += 1
                continue
            try:
                stored = copy_checkpoint(source, target, experiment_id, checkpoint_id)
            except ObjectDamaged as error:
                self._report(f"{experiment_id}: {error}")
                continue
            self._counts["checkpoints"] += 1
            self._counts["size_bytes"] += stored.manifest.size_bytes

    def _report(self, text: str) -> None:
        self._damaged.append(text)
        if not self._quiet:
            click.echo(f"damaged: {printable(text)}", err=True)


def _checkpoints_in(store: ObjectStore) -> Iterator[tuple[str, str]]:
    for info in store.list(_CHECKPOINTS):
        parts = info.name.removesuffix(_MANIFEST).split("/")
        if info.name.endswith(_MANIFEST) and len(parts) == 3:
            yield parts[1], parts[2]


def _holds(store: ObjectStore, name: str, data: bytes) -> bool:
    """Return whether a store has an object with these bytes."""
    try:
        return store.read(name) == data
    except ObjectMissing:
        return False


def _folder(source: str) -> FolderStore:
    """Return the folder to copy from.

    Raises:
        RungError: the source is no folder.
    """
    if "://" not in source:
        path = Path(source)
        if not path.is_dir():
            raise RungError(f"{source} is no folder: name the folder `objects` of a data folder")
        return FolderStore(path)
    store: Any = open_store(source)
    if not isinstance(store, FolderStore):
        raise RungError(f"{source}: checkpoints are copied from a folder, file:///…")
    return store
