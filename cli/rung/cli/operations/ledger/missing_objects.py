"""What experiments refer to, held against an object store: code, configurations, checkpoints."""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rung.config.run_config import CONFIGS, object_name, run_config
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired, CheckpointStored
from rung.events.experiment import ExperimentSubmitted
from rung.ledger.export.format import parse_line
from rung.storage import ObjectMissing, ObjectStore, checkpoint_prefix

_SUBMITTED: Final = ExperimentSubmitted.TYPE.encode()
_TYPES: Final = tuple(
    data.TYPE.encode()
    for data in (ExperimentSubmitted, CheckpointStored, CheckpointRetired, CheckpointDeleted)
)


def objects_of(lines: Iterable[bytes]) -> list[str]:
    """Return the objects that must be there for experiments to go on, and to be looked at.

    That is their code and configuration, and of each checkpoint that is still wanted its
    manifest, which is written last.

    Args:
        lines: of an export, which was found to be whole.

    Raises:
        RungError: an id or a digest is none.
    """
    wanted: dict[str, None] = {}
    gone: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not any(kind in line for kind in _TYPES):
            continue
        event = parse_line(line, number).event
        match event and event.data:
            case ExperimentSubmitted() as submitted:
                if submitted.code_digest is not None:
                    wanted[f"code/{submitted.code_digest}.tar.gz"] = None
                if submitted.config_digest is not None:
                    wanted[object_name(submitted.config_digest)] = None
            case CheckpointStored() as stored:
                wanted[_manifest(stored)] = None
            case CheckpointRetired() | CheckpointDeleted() as ended:
                gone.add(_manifest(ended))
            case _:
                pass
    return sorted(wanted.keys() - gone)


def missing(store: ObjectStore, names: Collection[str]) -> list[str]:
    """Return the objects that a store does not have, in order.

    Raises:
        ObjectError: the store does not answer.
    """

    def lacks(name: str) -> bool:
        try:
            store.version(name)
        except ObjectMissing:
            return True
        return False

    with ThreadPoolExecutor(store.parallel) as threads:
        lacking = threads.map(lacks, names)
        return [name for name, is_missing in zip(names, lacking, strict=True) if is_missing]


def made_again(lines: Iterable[bytes], store: ObjectStore, names: Collection[str]) -> list[str]:
    """Make the configurations among missing objects of the ledger; return what is still missing.

    Args:
        lines: of the export.
        store: that lacks the objects.
        names: of these.

    Raises:
        RungError: the store does not answer.
    """
    left = dict.fromkeys(names)
    if not any(name.startswith(CONFIGS) for name in left):
        return list(left)
    for number, line in enumerate(lines, 1):
        if _SUBMITTED not in line:
            continue
        event = parse_line(line, number).event
        if event is not None and isinstance(event.data, ExperimentSubmitted):
            found = run_config(event.data.config)
            if found.name in left:
                store.put_bytes(found.name, found.data)
                del left[found.name]
    return list(left)


def _manifest(checkpoint: CheckpointStored | CheckpointRetired | CheckpointDeleted) -> str:
    prefix = checkpoint_prefix(checkpoint.experiment_id, checkpoint.checkpoint_id)
    return f"{prefix}manifest.json"
