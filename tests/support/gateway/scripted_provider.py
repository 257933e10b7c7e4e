"""An identity provider that does what a test tells it to, on a real socket."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CODE = "the-code"


def key(name: str) -> RSAKey:
    """Return a new key."""
    return RSAKey.generate_key(2048, {"kid": name})


class ScriptedProvider:
    """Issues ID tokens for whatever it is asked, as a provider would or would not."""

    def __init__(self) -> None:
        self.issuer = ""
        self.keys = [key("one")]
        """Published; the last one signs."""
        self.claims: dict[str, Any] = {}
        """In place of those of a good ID token; `...` leaves one out."""
        self.algorithm = "RS256"
        self.discovery: dict[str, Any] = {}
        """In place of what a good provider publishes."""
        self.nonce = ""
        self.asked: list[dict[str, str]] = []
        """Requests for tokens."""
        self.device: list[str] = []
        """Errors that a device code is answered with before the token."""
        self.jwks_read = 0
        self.codes = {CODE}
        self.failing = False

    def id_token(self, client_id: str) -> str:
        """Return an ID token for a client."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "4711",
            "aud": client_id,
            "exp": now + 300,
            "iat": now,
            "nonce": self.nonce,
            "preferred_username": "anna",
            "groups": ["research"],
        } | self.claims
        wanted = {name: value for name, value in claims.items() if value is not ...}
        signing = self.keys[-1]
        header = {"alg": self.algorithm, "kid": signing.kid}
        return jwt.encode(header, wanted, signing, algorithms=[self.algorithm])

    def note(self, url: str) -> dict[str, str]:
        """Take the nonce of a request for authorization, as a provider does; return its query."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self.nonce = query["nonce"]
        return query

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator["ScriptedProvider"]:
        """Serve on a free port while the context lasts."""
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discover)
        app.router.add_get("/jwks", self._jwks)
        app.router.add_post("/token", self._token)
        app.router.add_post("/device", self._device)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _discover(self, _request: web.Request) -> web.Response:
        found = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "device_authorization_endpoint": f"{self.issuer}/device",
        }
        return web.json_response(found | self.discovery)

    async def _jwks(self, _request: web.Request) -> web.Response:
        self.jwks_read += 1
        published = KeySet(list(self.keys)).as_dict(private=False)
        return web.json_response(published)

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        await asyncio.sleep(0)
        if self.failing:
            return web.Response(status=503)
        if "device_code" in form and self.device:
            return web.json_response({"error": self.device.pop(0)}, status=400)
        if "code" in form:
            if form["code"] not in self.codes:
                return web.json_response({"error": "invalid_grant"}, status=400)
            self.codes.discard(form["code"])
        client = form.get("client_id", "rung")
        return web.json_response({"id_token": self.id_token(client), "token_type": "Bearer"})

    async def _device(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "device_code": "the-device-code",
                "user_code": "ABCD-EFGH",
                "verification_uri": f"{self.issuer}/enter",
                "expires_in": 60,
                "interval": 1,
            }
        )
