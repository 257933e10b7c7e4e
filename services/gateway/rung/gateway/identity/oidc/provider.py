"""An identity provider, by OpenID Connect: discovery, keys, codes for ID tokens.

The provider is trusted for who somebody is, not with this server: what it answers is limited in
size and time, redirections are not followed, its addresses must be https (http on loopback alone),
and it must call itself as it is configured, so that no other provider's answers are taken for it.
"""

import asyncio
import ipaddress
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote_plus

import aiohttp
import msgspec
import structlog
import yarl
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from msgspec import Struct

from rung.events import RungError
from rung.gateway.identity.oidc.id_token import BadIdToken, Claims, Expected, read_id_token

KEEP_S: Final = 3600.0
"""How long what the provider publishes is kept."""
RENEW_S: Final = 10.0
"""How long a signature by an unknown key does not lead to another look at the keys."""
_BYTES_MAX: Final = 1024 * 1024
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)

_log = structlog.get_logger()

R = TypeVar("R", bound=Struct)


class ProviderUnavailable(RungError):
    """The identity provider does not answer, or not as one does."""


class SignInRefused(RungError):
    """The identity provider, or what it answered, does not prove who somebody is."""


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """An identity provider.

    Raises:
        ValueError: a value cannot be; the message names it and what would be right.
    """

    issuer: str
    """Its address, under which `/.well-known/openid-configuration` is."""
    client_id: str
    """That of the page."""
    client_secret: str | None = None
    """Of that client; None for a public one."""
    cli_client_id: str | None = None
    """That of the command line, a public client with loopback redirection and device codes; the
    page's where it is None."""
    name: str = "single sign-on"
    """Shown on the button of the page."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = "groups"
    name_claim: str = "preferred_username"
    external_id_claim: str = "sub"
    """With what it sends as `externalId` when it provisions users by SCIM."""
    clock_skew_s: int = 60
    """By how much its clock may differ."""

    def __post_init__(self) -> None:
        if not is_safe(self.issuer) or yarl.URL(self.issuer).query_string:
            raise ValueError(
                f"issuer is {self.issuer!r}: give an https address without a query, such as"
                " https://id.example.org/realms/company"
            )
        if not self.client_id:
            raise ValueError("client_id is empty: give the one that the provider has for Rung")
        if "openid" not in self.scopes:
            raise ValueError("scopes lacks openid, without which there is no ID token")
        if not 0 <= self.clock_skew_s <= 600:
            raise ValueError(f"clock_skew_s is {self.clock_skew_s}: give 0 to 600 seconds")


class Client(NamedTuple):
    """One of the two clients that Rung is at the provider."""

    id: str
    secret: str | None


class DeviceCode(Struct, frozen=True):
    """What a terminal shows, and asks with, while somebody signs in elsewhere."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    verification_uri_complete: str | None = None
    interval: int = 5


class Pending(NamedTuple):
    """Nobody has signed in with a device code yet."""

    slower: bool
    """Whether to ask less often from now on."""


class _Discovered(Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    device_authorization_endpoint: str | None = None
    end_session_endpoint: str | None = None


class _Tokens(Struct, frozen=True):
    id_token: str


class _Failure(Struct, frozen=True):
    error: str = "unknown"


class Provider:
    """An identity provider; what it publishes is kept for a while."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings: Final = settings
        self.page: Final = Client(settings.client_id, settings.client_secret)
        self.cli: Final = (
            self.page if settings.cli_client_id is None else Client(settings.cli_client_id, None)
        )
        self._session: aiohttp.ClientSession | None = None
        self._discovered: tuple[float, _Discovered] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._reading = asyncio.Lock()

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    async def authorization_url(
        self, client: Client, *, redirect_uri: str, state: str, nonce: str, challenge: str
    ) -> str:
        """Return where somebody signs in, to come back with a code.

        Raises:
            ProviderUnavailable: it does not answer.
        """
        found = await self._discover()
        return str(
            yarl.URL(found.authorization_endpoint).update_query(
                response_type="code",
                client_id=client.id,
                redirect_uri=redirect_uri,
                scope=" ".join(self.settings.scopes),
                state=state,
                nonce=nonce,
                code_challenge=challenge,
                code_challenge_method="S256",
            )
        )

    async def redeem(
        self, client: Client, *, code: str, verifier: str, redirect_uri: str, nonce: str
    ) -> Claims:
        """Return who has signed in, for the code that they came back with.

        Raises:
            SignInRefused: the code is spent, stolen or expired, or the ID token is not for this.
            ProviderUnavailable: it does not answer.
        """
        answer = await self._ask_for_tokens(
            client,
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": redirect_uri,
                "code_verifier": verifier,
            },
        )
        if isinstance(answer, _Failure):
            raise SignInRefused(f"the identity provider does not take the code ({answer.error})")
        return await self._verified(answer.id_token, client, nonce)

    async def begin_device(self) -> DeviceCode:
        """Return a device code.

        Raises:
            SignInRefused: the provider gives none to this client.
            ProviderUnavailable: it does not answer.
        """
        endpoint = (await self._discover()).device_authorization_endpoint
        if endpoint is None:
            raise SignInRefused("the identity provider has no device codes; leave out --device")
        form = {"scope": " ".join(self.settings.scopes)}
        status, body = await self._post(endpoint, self.cli, form)
        if status != 200:
            why = _decoded(body, _Failure).error
            raise SignInRefused(f"the identity provider gives no device code ({why})")
        found = _decoded(body, DeviceCode)
        for url in (found.verification_uri, found.verification_uri_complete):
            if url is not None and not is_safe(url):
                raise ProviderUnavailable("the identity provider sends people to no https address")
        return found

    async def poll_device(self, device_code: str) -> Claims | Pending:
        """Return who has signed in with a device code, or that nobody has yet.

        Raises:
            SignInRefused: the code is denied, spent or expired.
            ProviderUnavailable: it does not answer.
        """
        grant = "urn:ietf:params:oauth:grant-type:device_code"
        form = {"grant_type": grant, "device_code": device_code}
        answer = await self._ask_for_tokens(self.cli, form)
        match answer:
            case _Tokens():
                return await self._verified(answer.id_token, self.cli, None)
            case _Failure("authorization_pending" | "slow_down"):
                return Pending(answer.error == "slow_down")
            case _:
                why = answer.error
                raise SignInRefused(f"the identity provider does not take the device code ({why})")

    async def _ask_for_tokens(self, client: Client, form: dict[str, str]) -> _Tokens | _Failure:
        endpoint = (await self._discover()).token_endpoint
        status, body = await self._post(endpoint, client, form)
        if status == 200:
            return _decoded(body, _Tokens)
        if 400 <= status < 500:
            return _decoded(body, _Failure)
        raise ProviderUnavailable(f"the identity provider answers {status}")

    async def _verified(self, text: str, client: Client, nonce: str | None) -> Claims:
        settings = self.settings
        expected = Expected(
            settings.issuer,
            client.id,
            nonce,
            settings.clock_skew_s,
            settings.groups_claim,
            settings.name_claim,
            settings.external_id_claim,
        )
        keys = await self._keys_for(text)
        try:
            return read_id_token(text, keys, expected, int(time.time()))
        except BadIdToken as error:
            _log.warning("ID token refused", issuer=settings.issuer, reason=str(error))
            raise SignInRefused(f"the identity provider's ID token is refused: {error}") from error

    async def _keys_for(self, text: str) -> KeySet:
        """Return the provider's keys, looked up again where they lack the token's."""
        try:
            wanted = jws.extract_compact(text.encode()).headers().get("kid")
        except (JoseError, ValueError) as error:
            raise SignInRefused("the identity provider answered with no ID token") from error
        async with self._reading:
            now = time.monotonic()
            if self._keys is not None:
                read_s, keys = self._keys
                known = wanted is None or any(key.kid == wanted for key in keys)
                if now - read_s < (KEEP_S if known else RENEW_S):
                    return keys
            body = await self._get((await self._discover()).jwks_uri)
            try:
                keys = KeySet.import_key_set(msgspec.json.decode(body))
            except (JoseError, ValueError, KeyError, TypeError) as error:
                raise ProviderUnavailable("the identity provider publishes no keys") from error
            self._keys = now, keys
            return keys

    async def _discover(self) -> _Discovered:
        now = time.monotonic()
        if self._discovered is not None and now - self._discovered[0] < KEEP_S:
            return self._discovered[1]
        issuer = self.settings.issuer
        body = await self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        found = _decoded(body, _Discovered)
        if found.issuer != issuer:
            raise ProviderUnavailable(
                f"the identity provider calls itself {found.issuer[:200]!r} and is configured as"
                f" {issuer!r}: give its issuer exactly so"
            )
        endpoints = (
            found.authorization_endpoint,
            found.token_endpoint,
            found.jwks_uri,
            found.device_authorization_endpoint,
        )
        if not all(url is None or is_safe(url) for url in endpoints):
            raise ProviderUnavailable("the identity provider has an address that is not https")
        self._discovered = now, found
        return found

    async def _get(self, url: str) -> bytes:
        status, body = await self._exchange("GET", url)
        if status != 200:
            raise ProviderUnavailable(f"the identity provider answers {status} at {url}")
        return body

    async def _post(self, url: str, client: Client, form: dict[str, str]) -> tuple[int, bytes]:
        if client.secret is None:
            return await self._exchange("POST", url, {**form, "client_id": client.id})
        # RFC 6749: both are encoded as in a form before they are joined.
        name, secret = quote_plus(client.id), quote_plus(client.secret)
        headers = {"Authorization": aiohttp.encode_basic_auth(name, secret)}
        return await self._exchange("POST", url, form, headers)

    async def _exchange(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar()
            )
        sent = {"Accept": "application/json", **(headers or {})}
        try:
            async with self._session.request(
                method, url, data=form, headers=sent, allow_redirects=False
            ) as answer:
                body = bytearray()
                async for chunk in answer.content.iter_chunked(64 * 1024):
                    body += chunk
                    if len(body) > _BYTES_MAX:
                        raise ProviderUnavailable("the identity provider answers with too much")
                return answer.status, bytes(body)
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise ProviderUnavailable(f"the identity provider does not answer: {why}") from error


def is_safe(url: str) -> bool:
    """Return whether an address is https, or http of the loopback interface."""
    try:
        parsed = yarl.URL(url)
    except ValueError:
        return False
    if parsed.host is None or parsed.user is not None or parsed.fragment:
        return False
    return parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.host))


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _decoded(body: bytes, record: type[R]) -> R:
    try:
        return msgspec.json.decode(body, type=record)
    except msgspec.DecodeError as error:
        raise ProviderUnavailable("the identity provider answers with something else") from error
