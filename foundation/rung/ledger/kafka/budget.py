"""How much may wait to be sent: the bound on memory while the brokers are away."""

import asyncio
from collections import deque


class Budget:
    """A number of bytes that appends take and give back; who finds too little waits in line."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        """What is taken at the moment."""
        return self._taken

    def take_now(self, size: int) -> bool:
        """Take some bytes if they are there and nobody waits; return whether that was so."""
        size = min(size, self._size)
        if self._line or self._taken + size > self._size:
            return False
        self._taken += size
        return True

    async def take(self, size: int) -> None:
        """Take some bytes; one that wants more than all there is waits for all."""
        if self.take_now(size):
            return
        size = min(size, self._size)
        ready = asyncio.get_running_loop().create_future()
        self._line.append((size, ready))
        try:
            await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():
                self.give(size)
            raise
        finally:
            self._admit()

    def give(self, size: int) -> None:
        """Give bytes back."""
        self._taken -= min(size, self._size)
        self._admit()

    def _admit(self) -> None:
        while self._line:
            size, ready = self._line[0]
            if not ready.done():
                if self._taken + size > self._size:
                    return
                self._taken += size
                ready.set_result(None)
            self._line.popleft()
