"""Where the agent's socket lies: in a folder that only its owner can enter.

The address of a Unix socket has at most 107 bytes. Below a data folder that is too deep for
that, the socket goes into a folder of its own under the system's temporary folder.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

_ADDRESS_BYTES_MAX: Final = 107
_NAME: Final = "agent.sock"


class SocketFolder:
    """The folder of one socket."""

    def __init__(self, folder: Path) -> None:
        self._wanted = folder / "socket"
        self._folder = self._wanted

    def open(self) -> Path:
        """Make the folder, empty, and return the path for the socket."""
        if len(str(self._wanted / _NAME).encode()) > _ADDRESS_BYTES_MAX:
            self._folder = Path(tempfile.mkdtemp(prefix="rung-"))
        else:
            shutil.rmtree(self._wanted, ignore_errors=True)
            self._wanted.mkdir(mode=0o700, parents=True)
        return self._folder / _NAME

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
