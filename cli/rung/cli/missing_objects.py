"""Code archives and checkpoints that experiments refer to, held against an object store."""

from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor

from rung.events import Event, UndecodableEvent, decode, topic
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired, CheckpointStored
from rung.events.experiment import ExperimentSubmitted
from rung.ledger import Ledger
from rung.objects import ObjectMissing, ObjectStore, checkpoint_prefix

_READ = 1_000


async def objects_of(ledger: Ledger, experiments: Collection[str]) -> list[str]:
    """Return the objects that must be there for experiments to go on, and to be looked at.

    That is their code, and of each checkpoint that is still wanted its manifest, which is written
    last.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    wanted: dict[str, None] = {}
    gone: set[str] = set()
    async for event in _events(ledger, frozenset(experiments)):
        match event.data:
            case ExperimentSubmitted(code_digest=str(digest)):
                wanted[f"code/{digest}.tar.gz"] = None
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


def _manifest(checkpoint: CheckpointStored | CheckpointRetired | CheckpointDeleted) -> str:
    prefix = checkpoint_prefix(checkpoint.experiment_id, checkpoint.checkpoint_id)
    return f"{prefix}manifest.json"


async def _events(ledger: Ledger, keys: frozenset[str]) -> AsyncIterator[Event]:
    for name in (topic.EXPERIMENTS, topic.RETIREMENTS):
        for partition in range(ledger.partitions(name)):
            position = await ledger.start(name, partition)
            while records := await ledger.read(name, partition, position, _READ):
                position = records[-1].position + 1
                for record in records:
                    if record.key in keys:
                        try:
                            yield decode(record.value)
                        except UndecodableEvent:
                            continue
