"""Signing in and tokens, by the HTTP API."""

from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from rung import api
from rung.client._error import ServerFailed
from rung.client._transport import Query, Transport

A = TypeVar("A", bound=Struct)


class Identity:
    """The part of a client that signs in and out, and manages tokens."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def methods(self) -> api.SignInMethods:
        """Return how one signs in at the server, and as whom the client is."""
        return _read(await self._transport.get("/auth/methods"), api.SignInMethods)

    async def with_password(self, wanted: api.PasswordSignIn) -> api.SignedIn:
        """Sign in with the password of a local account."""
        return await self._post("/auth/password", api.SignedIn, wanted)

    async def address(self, wanted: api.LoopbackSignIn) -> api.SignInAddress:
        """Return where a browser signs in, to come back to this machine with a code."""
        return await self._post("/auth/loopback", api.SignInAddress, wanted)

    async def with_code(self, wanted: api.CodeSignIn) -> api.SignedIn:
        """Sign in with that code."""
        return await self._post("/auth/code", api.SignedIn, wanted)

    async def device_code(self) -> api.DeviceCode:
        """Return a code that somebody enters in a browser elsewhere."""
        return await self._post("/auth/device", api.DeviceCode)

    async def with_device_code(self, wanted: api.DeviceSignIn) -> api.SignedIn | api.DevicePending:
        """Sign in with that code, if somebody has entered it."""
        body = await self._post_raw("/auth/device/token", wanted)
        try:
            return msgspec.json.decode(body, type=api.SignedIn)
        except msgspec.ValidationError:
            return _read(body, api.DevicePending)

    async def sign_out(self) -> api.SignedOut:
        """End the session, or revoke the token, that the client has."""
        return await self._post("/auth/sign-out", api.SignedOut)

    async def tokens(self, user: str | None = None) -> list[api.Token]:
        """Return one's tokens and sessions, or those of another user."""
        query: Query = {"user": user}
        return _read(await self._transport.get("/tokens", query), api.TokenList).items

    async def create_token(self, wanted: api.TokenWanted) -> api.TokenIssued:
        """Create a token; its secret is shown this once."""
        return await self._post("/tokens", api.TokenIssued, wanted)

    async def rotate_token(self, token: str, wanted: api.TokenRotation) -> api.TokenIssued:
        """Give a token, by its id or name, another secret, which is shown this once."""
        path = f"/tokens/{quote(token, safe='')}/rotate"
        return await self._post(path, api.TokenIssued, wanted)

    async def revoke_token(self, token: str) -> api.TokenRevoked:
        """Revoke a token by its id or name."""
        return await self._post(f"/tokens/{quote(token, safe='')}/revoke", api.TokenRevoked)

    async def set_password(self, user: str, wanted: api.PasswordWanted) -> api.PasswordSet:
        """Set one's own password, or that of another user."""
        path = f"/users/{quote(user, safe='')}/password"
        return await self._post(path, api.PasswordSet, wanted)

    async def _post(self, path: str, kind: type[A], body: Struct | None = None) -> A:
        return _read(await self._post_raw(path, body), kind)

    async def _post_raw(self, path: str, body: Struct | None) -> bytes:
        data = b"" if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        return await self._transport.post(path, data, headers=headers)


def _read(body: bytes, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ServerFailed(
            f"the server's answer is not understood ({error}): is it a Rung of another version?"
        ) from error
