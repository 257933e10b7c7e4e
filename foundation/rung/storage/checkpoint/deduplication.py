"""Deduplication: a file that several checkpoints have in common is stored once.

In a folder it gets a second name (`FolderStore.link`), and the file system deletes it with the
last one. Elsewhere, such as in S3, the checkpoint that stored the file is its *owner*. Each
*holder* of the same bytes puts two empty objects as marks, in this order:

    checkpoints/<experiment>/<holder>/.uses/<owner>/<file>    where the holder's file lies
    checkpoints/<experiment>/<owner>/.held/<holder>/<file>    why it must stay there

Theory of operation. A file lives while its owner's manifest or a `.held` mark of it exists.

* To join: put both marks, *then* check that the owner, or another holder, still has its manifest.
  If not, delete the marks and store the bytes again.
* To leave: delete the manifest, *then* the marks in the owners, *then* the files for which neither
  a mark nor the owner's manifest is left.

Of a concurrent join and leave, one sees the other: either the mark was put before the leaving
checkpoint looked, and it keeps the file; or its manifest was gone before the joining checkpoint
looked, and it does not join. Once nothing holds a file, nothing can join any more, so a deletion
may be slow, be done twice, or be cut and repeated at any point. That needs a store which lists
what was written (S3 does). A crash leaves at worst a mark too many, which goes with its holder.

Checkpoints share files within an experiment, with the one that `Manifest.previous` names.
"""

from collections.abc import Iterable, Iterator, Sequence

from rung.events.errors import ObjectMissing
from rung.storage.checkpoint.manifest import (
    MANIFEST,
    RESERVED,
    StoredCheckpoint,
    checkpoint_prefix,
)
from rung.storage.port import ObjectInfo, ObjectStore

_HELD, _USES = RESERVED


def locate(store: ObjectStore, stored: StoredCheckpoint) -> dict[str, ObjectInfo]:
    """Return the objects of the files of a checkpoint that exist, and of its manifest."""
    manifest = stored.manifest
    experiment_id = manifest.provenance.experiment_id
    prefix = checkpoint_prefix(experiment_id, manifest.checkpoint_id)
    names = {info.name.removeprefix(prefix): info for info in store.list(prefix)}
    found = {name: names[name] for name in (*manifest.files, MANIFEST) if name in names}
    for owner, name in _marks(_USES, names):
        if name in manifest.files and name not in found:
            place = checkpoint_prefix(experiment_id, owner) + name
            found.update((name, info) for info in store.list(place) if info.name == place)
    return found


def place_of(store: ObjectStore, experiment_id: str, checkpoint_id: str, name: str) -> str:
    """Return the object of a file that a checkpoint shares.

    Raises:
        ObjectMissing: it shares no file of that name.
    """
    owner = _owner_of(store, experiment_id, checkpoint_id, name)
    if owner is None:
        raise ObjectMissing(f"checkpoint {checkpoint_id}: {name} is missing")
    return checkpoint_prefix(experiment_id, owner) + name


def join(
    store: ObjectStore, experiment_id: str, holder: str, other: StoredCheckpoint, names: list[str]
) -> list[str]:
    """Hold files of another checkpoint, of the same names; return those that could be held."""
    other_id, own = other.manifest.checkpoint_id, checkpoint_prefix(experiment_id, holder)
    owners = {name: _owner_of(store, experiment_id, other_id, name) or other_id for name in names}
    places = {name: checkpoint_prefix(experiment_id, owners[name]) for name in names}
    for name, owner in owners.items():
        store.put_bytes(f"{own}{_USES}/{owner}/{name}", b"")
        store.put_bytes(f"{places[name]}{_HELD}/{holder}/{name}", b"")
    if not _is_complete(store, experiment_id, other_id):
        for owner in sorted(set(owners.values())):
            _leave(store, experiment_id, holder, owner)
        return []
    sizes = {name: other.manifest.files[name].size_bytes for name in names}
    return [
        name
        for name in names
        if ObjectInfo(places[name] + name, sizes[name]) in store.list(places[name] + name)
    ]


def delete_checkpoint(store: ObjectStore, experiment_id: str, checkpoint_id: str) -> int:
    """Delete a checkpoint, its manifest first; return how many objects were deleted.

    Files that another checkpoint shares stay until that one is deleted. It is safe to repeat.
    """
    prefix = checkpoint_prefix(experiment_id, checkpoint_id)
    count = store.delete(prefix + MANIFEST)
    names = [info.name.removeprefix(prefix) for info in store.list(prefix)]
    for owner in sorted({owner for owner, _ in _marks(_USES, names)}):
        count += _leave(store, experiment_id, checkpoint_id, owner)
    return count + _delete_unheld(store, prefix, names)


def delete_checkpoints(store: ObjectStore, experiment_id: str) -> int:
    """Delete all checkpoints of an experiment, and what unfinished ones left.

    The manifests go first, so that half of a checkpoint is never taken for one. It is safe to
    repeat; returns how many manifests there were.
    """
    prefix = f"checkpoints/{experiment_id}/"
    manifests = [info.name for info in store.list(prefix) if info.name.endswith(f"/{MANIFEST}")]
    for name in manifests:
        store.delete(name)
    store.delete(prefix)
    return len(manifests)


def sweep_unfinished(store: ObjectStore, experiment_id: str, trial_id: str, current: str) -> None:
    """Delete files without a manifest that a trial's runs before the allocation `current` left."""
    run = _run_of(f"{current}.", trial_id)
    names = [info.name for info in store.list(f"checkpoints/{experiment_id}/{trial_id}.")]
    complete = {name.split("/")[2] for name in names if name.endswith(f"/{MANIFEST}")}
    for checkpoint_id in sorted({name.split("/")[2] for name in names} - complete):
        if _run_of(checkpoint_id, trial_id) < run:
            delete_checkpoint(store, experiment_id, checkpoint_id)


def _run_of(checkpoint_id: str, trial_id: str) -> float:
    """Return the run of a checkpoint; infinity where its id names none."""
    number = checkpoint_id[len(trial_id) + 1 :].partition(".")[0]
    return int(number) if number.isdecimal() else float("inf")


def _leave(store: ObjectStore, experiment_id: str, holder: str, owner: str) -> int:
    """Drop the marks in an owner, and its files if nothing holds them any more."""
    own = checkpoint_prefix(experiment_id, holder)
    prefix = checkpoint_prefix(experiment_id, owner)
    count = store.delete(f"{prefix}{_HELD}/{holder}/")
    if not _is_complete(store, experiment_id, owner):
        names = [info.name.removeprefix(prefix) for info in store.list(prefix)]
        count += _delete_unheld(store, prefix, names)
    return count + store.delete(f"{own}{_USES}/{owner}/")


def _delete_unheld(store: ObjectStore, prefix: str, names: Sequence[str]) -> int:
    """Delete the objects of a checkpoint without a manifest, except those that are held."""
    held = {name for _, name in _marks(_HELD, names)}
    if not held:
        return store.delete(prefix)
    marks = tuple(f"{folder}/" for folder in RESERVED)
    unheld = [name for name in names if name not in held and not name.startswith(marks)]
    return sum(
        store.delete(prefix + name)
        for name in unheld
        if not any(kept.startswith(name) for kept in held)  # a deletion goes by prefix
    )


def _is_complete(store: ObjectStore, experiment_id: str, checkpoint_id: str) -> bool:
    name = checkpoint_prefix(experiment_id, checkpoint_id) + MANIFEST
    return any(info.name == name for info in store.list(name))


def _owner_of(store: ObjectStore, experiment_id: str, checkpoint_id: str, name: str) -> str | None:
    prefix = f"{checkpoint_prefix(experiment_id, checkpoint_id)}{_USES}/"
    marks = (f"{_USES}/{info.name.removeprefix(prefix)}" for info in store.list(prefix))
    return next((owner for owner, shared in _marks(_USES, marks) if shared == name), None)


def _marks(kind: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the checkpoint and the file that each mark of a kind names."""
    for name in names:
        folder, _, rest = name.partition("/")
        other, slash, file = rest.partition("/")
        if folder == kind and slash:
            yield other, file
