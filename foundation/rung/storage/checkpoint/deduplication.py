"""Files that several checkpoints have in common are stored once.

In a folder the file system does it: the file gets a second name (`FolderStore.link`) and goes
with the last of them. Elsewhere, such as in S3, the one that stored the file is its *owner*, and
whoever has the same bytes holds on to it by two empty objects, put in this order:

    checkpoints/<experiment>/<holder>/.uses/<owner>/<file>    where the holder's file lies
    checkpoints/<experiment>/<owner>/.held/<holder>/<file>    why it must stay there

Theory of operation. A file lives while its owner's manifest or a `.held` of it is there.

* To join: put both marks, *then* look whether some other holder (or the owner) still has its
  manifest. If not, give the marks back and store the bytes anew.
* To leave: delete the manifest, *then* the marks in the owners, *then* look whether a mark or the
  owner's manifest is left, and delete what nobody wants.

Of a join and a leave at the same time, one sees the other: either the mark was put before the
leaver looked, and it leaves the file alone; or the leaver's manifest was gone before the joiner
looked, and it does not join. Once nobody is left, nobody can join any more, so a deletion may be
slow, be done twice, or be cut and repeated at any point. That needs a store which lists what was
written (S3 does); a crash leaves at worst a mark too many, which goes with its holder.

Checkpoints share within an experiment, with the one that `Manifest.previous` names.
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
    """Return where the files of a checkpoint lie and how large they are; missing ones are absent.

    Its manifest is among them.
    """
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
    """Return under which name the file of a checkpoint lies that is not in its own place.

    Raises:
        ObjectMissing: it shares none of that name.
    """
    owner = _owner_of(store, experiment_id, checkpoint_id, name)
    if owner is None:
        raise ObjectMissing(f"checkpoint {checkpoint_id}: {name} is missing")
    return checkpoint_prefix(experiment_id, owner) + name


def join(
    store: ObjectStore, experiment_id: str, holder: str, other: StoredCheckpoint, names: list[str]
) -> list[str]:
    """Hold on to files of another checkpoint; return those for which that was possible.

    Args:
        store: where both are.
        experiment_id: whose checkpoints they are.
        holder: the checkpoint that is being stored.
        other: one that was complete.
        names: of the files, which both have under the same names.
    """
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
    """Delete a checkpoint, its manifest first, so that half of one is never taken for one.

    What another checkpoint shares stays until that one is deleted. Returns how many objects were
    deleted; it is safe to repeat.
    """
    prefix = checkpoint_prefix(experiment_id, checkpoint_id)
    count = store.delete(prefix + MANIFEST)
    names = [info.name.removeprefix(prefix) for info in store.list(prefix)]
    for owner in sorted({owner for owner, _ in _marks(_USES, names)}):
        count += _leave(store, experiment_id, checkpoint_id, owner)
    return count + _delete_unheld(store, prefix, names)


def _leave(store: ObjectStore, experiment_id: str, holder: str, owner: str) -> int:
    """Let go of an owner's files, and delete them if nobody wants them any more."""
    own = checkpoint_prefix(experiment_id, holder)
    prefix = checkpoint_prefix(experiment_id, owner)
    count = store.delete(f"{prefix}{_HELD}/{holder}/")
    if not _is_complete(store, experiment_id, owner):
        names = [info.name.removeprefix(prefix) for info in store.list(prefix)]
        count += _delete_unheld(store, prefix, names)
    return count + store.delete(f"{own}{_USES}/{owner}/")


def _delete_unheld(store: ObjectStore, prefix: str, names: Sequence[str]) -> int:
    """Delete the objects of a checkpoint whose manifest is gone, but for those that are held."""
    held = {name for _, name in _marks(_HELD, names)}
    if not held:
        return store.delete(prefix)
    marks = tuple(f"{folder}/" for folder in RESERVED)
    unwanted = [name for name in names if name not in held and not name.startswith(marks)]
    return sum(
        store.delete(prefix + name)
        for name in unwanted
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
    """Yield of all marks of a kind the checkpoint that each names, and the file."""
    for name in names:
        folder, _, rest = name.partition("/")
        other, slash, file = rest.partition("/")
        if folder == kind and slash:
            yield other, file
