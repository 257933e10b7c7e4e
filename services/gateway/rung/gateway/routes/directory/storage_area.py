"""Storage areas of workspaces: checked where one is set, read where an experiment gets its own.

The experiments of a workspace get the area that it has as they are submitted, and keep it: also
where the workspace gets another one, or they are moved.
"""

import asyncio

from rung.api import ProblemItem
from rung.gateway.context import Context
from rung.gateway.problem import Problem
from rung.storage import ObjectError, ObjectUnavailable
from rung.storage.area import area_prefix, try_out


async def check_storage(context: Context, storage: str) -> None:
    """Refuse a storage area in which no checkpoint can be stored; an empty one is none.

    Raises:
        Problem: it has no valid name, or an object cannot be written there, read or deleted.
        ObjectUnavailable: the object store does not answer now.
    """
    if not storage:
        return
    try:
        area_prefix(storage)
        await asyncio.to_thread(try_out, context.store.area(storage))
    except ObjectUnavailable:
        raise
    except ObjectError as error:
        item = ProblemItem(path="storage", message=str(error), value=storage[:100])
        raise Problem(422, "invalid", f"storage: {error}", errors=[item]) from None


def area_of(context: Context, workspace_id: str) -> str:
    """Return the storage area of a workspace; empty: none."""
    workspace = context.directory.state.workspaces.get(workspace_id)
    return "" if workspace is None else workspace.storage
