"""A directory in memory, changed without a gateway."""

from rung.events.changes import Change
from rung.events.directory import SYSTEM, DirectoryChanged
from rung.gateway.directory.directory import Directory


def fold_change(directory: Directory, *wanted: Change) -> None:
    """Have a directory fold changes as if they had been decided."""
    for change in wanted:
        version = directory.state.version + 1
        directory.fold(
            DirectoryChanged(
                request_id=f"r{version}", by=SYSTEM, version=version, at_ms=version, change=change
            )
        )
