"""Deletion of code archives that only deleted experiments had.

Archives are named by their digest, and experiments share them. A submission of the same code may
come at any moment, also at another gateway, so an archive that was deleted is put back if one came
meanwhile; and a submission stores its code once more after it is on record. So whichever of the
two comes last sees the other.

What is to be deleted follows from the projection of experiments: a gateway that was killed deletes
it after its next start, and two gateways do no harm.
"""

import asyncio
import contextlib
from typing import Final

import structlog

from rung.events import LedgerError, RungError, topic
from rung.events.errors import ObjectMissing
from rung.gateway.context import Context
from rung.gateway.projections.experiments import ExperimentProjection, unused_codes

_WAIT_S: Final = 60.0

_log = structlog.get_logger()


def code_name(digest: str) -> str:
    """Return the name of an archive in the object store."""
    return f"code/{digest}.tar.gz"


async def sweep_code(context: Context) -> None:
    """Delete unused archives, now and then, until cancelled."""
    done: dict[str, int] = {}
    while True:
        if context.models.behind() is None:
            await _sweep(context, done)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(context.settings.sweep_every):
                await context.closing.wait()
                return


async def _sweep(context: Context, done: dict[str, int]) -> None:
    """Delete what is unused; `done` has the newest experiment of each digest that was deleted."""
    for digest, newest in (await _unused(context)).items():
        if done.get(digest) == newest:
            continue
        try:
            await _delete(context, digest)
        except RungError as error:
            _log.warning("code not deleted", digest=digest, reason=str(error))
        else:
            done[digest] = newest


async def _delete(context: Context, digest: str) -> None:
    """Delete an archive, and put it back if an experiment has it now.

    Raises:
        RungError: the store or the ledger does not answer.
    """
    name = code_name(digest)
    try:
        data = await asyncio.to_thread(context.store.read, name)
    except ObjectMissing:
        return
    try:
        await asyncio.to_thread(context.store.delete, name)
        unused = await _is_unused_now(context, digest)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(context.store.put_bytes, name, data))
        raise
    if not unused:
        await asyncio.to_thread(context.store.put_bytes, name, data)
        return
    _log.info("code deleted", digest=digest, size_bytes=len(data))


async def _is_unused_now(context: Context, digest: str) -> bool:
    """Return whether no experiment has the code, by all that is on record at this moment."""
    ledger = context.ledger
    ends = {
        (topic.EXPERIMENTS, partition): await ledger.end(topic.EXPERIMENTS, partition) - 1
        for partition in range(ledger.partitions(topic.EXPERIMENTS))
    }
    if not await context.models.reached(ends, wait_s=_WAIT_S):
        raise LedgerError("the projection of experiments is behind")
    return digest in await _unused(context)


async def _unused(context: Context) -> dict[str, int]:
    return await context.models.read(ExperimentProjection, unused_codes)
