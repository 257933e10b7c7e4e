"""What a gateway needs to know who asks: sessions, passwords, the provider, open requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from rung.gateway.directory.asking import System
from rung.gateway.identity.attempts import Attempts
from rung.gateway.identity.cookies import Cookies
from rung.gateway.identity.oidc.provider import Provider
from rung.gateway.identity.open_requests import OpenRequests
from rung.gateway.identity.passwords import Passwords
from rung.gateway.identity.sessions import Uses
from rung.gateway.identity.settings import IdentitySettings


class Identity:
    """The parts by which requests get their principals."""

    def __init__(self, system: System, settings: IdentitySettings, token: str) -> None:
        self.root: Final = token.encode()
        """The token of the user `admin`, with which the server was started."""
        self.system: Final = system
        self.settings: Final = settings
        self.passwords: Final = Passwords()
        self.attempts: Final = Attempts()
        self.provider: Final = None if settings.provider is None else Provider(settings.provider)
        self.cookies: Final = Cookies(secure=settings.is_secure)
        self.open_requests: Final = OpenRequests(system.directory)
        self.uses: Final = Uses(system)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Cut the connections of those who lose access, while the context lasts."""
        watching = asyncio.create_task(self.open_requests.watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self.uses.close()
            if self.provider is not None:
                await self.provider.close()


IDENTITY: Final = web.AppKey("identity", Identity)
