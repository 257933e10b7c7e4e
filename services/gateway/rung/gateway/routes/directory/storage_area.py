"""Storage areas of workspaces: checked where one is set, read where an experiment gets its own.

The experiments of a workspace get the area that it has as they are submitted, and keep it: also
where the workspace gets another one, or they are moved.
"""

import asyncio
from typing import Final

from rung.api import ProblemItem
from rung.gateway.context import Context
from rung.gateway.problem import Problem
from rung.gateway.routes.changes.control import check_installed_level, check_upgraded
from rung.storage import ObjectError, ObjectUnavailable, is_area
from rung.storage.area import area_prefix, try_out

_LEVEL: Final = 3
"""The logic level of the installation from which on experiments have areas: replicas of an older
release would look for their checkpoints outside of these."""
_ONE_PLACE: Final = "all checkpoints lie in one place"


async def check_storage(context: Context, storage: str) -> None:
    """Refuse a storage area in which no checkpoint can be stored; an empty one is none.

    Raises:
        Problem: it has no valid name, an object cannot be written there, read or deleted, or a
            replica of an older release may run.
        ObjectUnavailable: the object store does not answer now.
    """
    if not storage:
        return
    try:
        area_prefix(storage)
        await check_installed_level(context, _LEVEL, there=_ONE_PLACE)
        await asyncio.to_thread(try_out, context.store.area(storage))
    except ObjectUnavailable:
        raise
    except ObjectError as error:
        item = ProblemItem(path="storage", message=str(error), value=storage[:100])
        raise Problem(422, "invalid", f"storage: {error}", errors=[item]) from None


def area_of(context: Context, workspace_id: str, level: int) -> str:
    """Return the storage area of a workspace; empty: none.

    Args:
        context: of the request.
        workspace_id: of the workspace.
        level: the installation's logic level.

    Raises:
        Problem: an earlier release recorded one that cannot be used.
    """
    workspace = context.directory.state.workspaces.get(workspace_id)
    if workspace is None or not workspace.storage:
        return ""
    check_upgraded(level, _LEVEL, there=_ONE_PLACE)
    if not is_area(workspace.storage):
        detail = (
            f"the storage of workspace {workspace.name} is {workspace.storage[:100]!r}, which is"
            " no name of a storage area: `rung workspace edit` sets another one"
            " (`--storage NAME`), or none (`--storage ''`)"
        )
        raise Problem(409, "bad-storage", detail)
    return workspace.storage
