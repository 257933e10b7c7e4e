"""A real gateway with a real searcher and real series behind it, and a Chromium before it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from page.browser import Browser, Chromium
from rung.api import Audit
from rung.events import Payload
from rung.gateway.context import Parts
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.identity.settings import IdentitySettings
from rung.gateway.requests.after import HEADER, token_of
from rung.gateway.service import serve as serve_gateway
from rung.gateway.settings import Settings as GatewaySettings
from rung.ledger import MemoryLedger
from rung.metrics import SeriesStore, Settings
from rung.metrics import serve as serve_metrics
from rung.runtime import FactWriter, host
from rung.searcher.processor import Searcher
from rung.secrets.master_key import LocalKeys
from rung.storage import FolderStore
from support.gateway.scenario import History, drafts

TOKEN = "the-token-of-the-page"  # noqa: S105 - not a secret


class Site:
    """What the page is served by."""

    def __init__(self, folder: Path) -> None:
        self.ledger = MemoryLedger()
        self.store = FolderStore(folder / "objects")
        self.series = SeriesStore(folder / "series", ledger_id=self.ledger.id)
        self.port = 0
        self.identity = IdentitySettings()
        self._writer = FactWriter(self.ledger, source="/rung/test", origin="agent/page/0")
        self._gateway: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the page is, without a token."""
        return f"http://127.0.0.1:{self.port}/"

    async def start(self) -> None:
        """Start the gateway, again at the same port."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        started = asyncio.Event()
        self._gateway = asyncio.create_task(
            serve_gateway(
                self.ledger,
                self.store,
                listener=listener,
                token=TOKEN,
                parts=Parts(self.series, _audit),
                settings=GatewaySettings(identity=self.identity),
                secrets_key=LocalKeys(lambda: [b"k" * 32]),
                started=started.set,
            )
        )
        await started.wait()

    async def stop(self) -> None:
        """Stop the gateway."""
        assert self._gateway
        self._gateway.cancel()
        await asyncio.gather(self._gateway, return_exceptions=True)

    async def write(self, *facts: Payload) -> None:
        """Append what agents and the gateway would, and wait until the gateway shows it."""
        for data in facts:
            await self._writer.write(data)
        await self._shown()

    async def play(self, history: History) -> None:
        """Append a whole history, and wait until the gateway shows it."""
        await self.ledger.append(drafts(history))
        await self._shown()

    async def _shown(self) -> None:
        """Wait until the gateway, if it runs, shows what is on record."""
        assert self._gateway
        if self._gateway.done():
            return
        ends = {
            (name, partition): await self.ledger.end(name, partition) - 1
            for name in ("experiments", "searches")
            for partition in range(self.ledger.partitions(name))
        }
        headers = {"Authorization": f"Bearer {TOKEN}", HEADER: token_of(self.ledger.id, ends)}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}api/v1/status", headers=headers) as answer,
        ):
            assert answer.status == 200


async def _audit(experiment_id: str) -> Audit:
    return Audit(same=True, decisions=len(experiment_id), differences=[], verdicts=[])


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """An empty installation, serving."""
    site = Site(tmp_path)
    services = [
        asyncio.create_task(host(site.ledger, Searcher())),
        asyncio.create_task(host(site.ledger, DirectoryProcessor())),
        asyncio.create_task(serve_metrics(site.ledger, site.series, Settings(flush_seconds=0.1))),
    ]
    await site.start()
    yield site
    await site.stop()
    for service in services:
        service.cancel()
    await asyncio.gather(*services, return_exceptions=True)
    await site.series.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A Chromium for all tests."""
    with Chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
async def browser(chromium: Chromium) -> AsyncIterator[Browser]:
    """A fresh tab; at the end the page must not have complained about anything."""
    async with chromium.browse() as browser:
        yield browser
        assert browser.complaints == []
