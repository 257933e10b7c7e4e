"""A real gateway on a real socket, with a ledger in memory and objects in a folder."""

import asyncio
import contextlib
import io
import socket
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rung.cli.operations.components import READERS
from rung.events import Payload, decode
from rung.gateway import serve
from rung.gateway.context import Audit, Parts, PolicyOf, Readers
from rung.gateway.series import Series
from rung.gateway.settings import Settings
from rung.ledger import Ledger, MemoryLedger
from rung.runtime import FactWriter, host
from rung.scheduler.policies import policy_of
from rung.scheduler.processor import Scheduler
from rung.searcher.processor import Searcher
from rung.secrets.master_key import LocalKeys, MasterKey
from rung.storage import FolderStore, ObjectStore
from support.gateway.client import TOKEN, Client
from support.gateway.pins import answer_pins
from support.gateway.scenario import History, drafts

EXPERIMENT_FILE = """\
name: digits
labels: [small]
entrypoint: python3 -m train
searcher:
  name: random
  metric: error
  max_trials: 2
  max_length: {epochs: 4}
hyperparameters:
  lr: {type: double, minval: 0.0, maxval: 1.0}
"""


def archive(**files: bytes) -> bytes:
    """Return a tar.gz of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def patient(**fields: Any) -> Settings:
    """Return settings of a gateway that waits for its projections, however busy the machine is."""
    return Settings(
        **({"start_timeout": 60.0, "seen_timeout": 60.0, "limits_after": 0.0} | fields)
    )


class World:
    """A ledger, a store, and as many gateways on them as a test starts."""

    def __init__(self, ledger: Ledger, store: ObjectStore) -> None:
        self.ledger = ledger
        self.store = store
        self.series: Series | None = None
        self.audit: Audit | None = None
        self.policy_of: PolicyOf | None = policy_of
        self.readers: Readers | None = READERS
        self.settings = patient()
        self.secrets_key: MasterKey | None = LocalKeys(lambda: [b"k" * 32])
        self.folder: Path | None = None
        self.answers_pins = True
        """Whether pins are answered beside a gateway, as checkpoint-gc does it."""
        self.writer = FactWriter(ledger, source="/rung/test", origin="agent/test/0")

    @contextlib.asynccontextmanager
    async def gateway(self) -> AsyncIterator[Client]:
        """Run a gateway and return a client of it."""
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started = asyncio.Event()
        serving = asyncio.create_task(
            serve(
                self.ledger,
                self.store,
                listener=listener,
                token=TOKEN,
                parts=Parts(self.series, self.audit, self.policy_of, self.readers),
                settings=self.settings,
                folder=self.folder,
                started=started.set,
                secrets_key=self.secrets_key,
            )
        )
        await started.wait()
        answering = asyncio.create_task(answer_pins(self.ledger)) if self.answers_pins else None
        async with aiohttp.ClientSession() as session:
            yield Client(session, url)
        tasks = [serving, *([answering] if answering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def searcher(self) -> AsyncIterator[None]:
        """Run the searcher."""
        task = asyncio.create_task(host(self.ledger, Searcher()))
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def scheduler(self) -> AsyncIterator[None]:
        """Run the scheduler."""
        task = asyncio.create_task(host(self.ledger, Scheduler()))
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def write(self, *facts: Payload) -> None:
        """Append what other services would."""
        for data in facts:
            await self.writer.write(data)

    async def play(self, history: History) -> None:
        """Append a whole history."""
        await self.ledger.append(drafts(history))

    async def all(self, topic: str) -> list[Payload]:
        """Return what lies on a topic."""
        found = []
        for partition in range(self.ledger.partitions(topic)):
            records = await self.ledger.read(topic, partition, 0, 1_000_000)
            found += [decode(record.value).data for record in records]
        return found


async def until(read: Callable[[], Awaitable[Any]], wanted: Callable[[Any], bool]) -> Any:
    """Read until what is read is wanted; the server has its own loop's time to get there."""
    async with asyncio.timeout(20):
        while True:
            found = await read()
            if wanted(found):
                return found
            await asyncio.sleep(0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return an empty world."""
    return World(MemoryLedger(), FolderStore(tmp_path / "objects"))


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    """Return a client of the one gateway of the world."""
    async with world.gateway() as client:
        yield client
