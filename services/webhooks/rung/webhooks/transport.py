"""Transport: one attempt to deliver, which ends in time whatever the receiver does.

Each attempt has a connection of its own, to an address that was checked (`rung.subscription`);
it follows no redirects, uses no proxies, keeps no cookies, and sends nothing but the message. Of
an answer its status and `Retry-After` count; its text is read up to `ANSWER_BYTES_MAX`.
"""

import asyncio
import email.utils
import math
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import aiohttp
import aiosmtplib
from aiohttp.abc import AbstractResolver, ResolveResult

from rung.subscription.address import (
    PUBLIC,
    AddressRefused,
    AddressRule,
    Target,
    check_address,
    target_of,
)
from rung.subscription.cloud_event import CloudEvent
from rung.subscription.document import Format, Receiver
from rung.webhooks.message import body_of, headers_of, mail_of
from rung.webhooks.settings import Mail

ANSWER_BYTES_MAX: Final = 4096
_RETRY_AFTER_MAX_S: Final = 86_400.0
_GONE: Final = 410
_LOOKUPS: Final = 32
"""Name servers that hang take a thread each until they give up."""

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""


class Outcome(NamedTuple):
    """How an attempt ended."""

    delivered: bool
    status: int | None = None
    reason: str = ""
    """Why it failed, with the beginning of the answer; for people."""
    retry_after_s: float = 0.0
    gone: bool = False
    """Whether the receiver wants nothing any more."""


def failure(reason: str, status: int | None = None) -> Outcome:
    """Return that an attempt failed."""
    return Outcome(delivered=False, status=status, reason=reason)


class _Pinned(AbstractResolver):
    """Knows one host: the addresses that were checked."""

    def __init__(self, target: Target, addresses: Sequence[str]) -> None:
        self._target = target
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        assert host == self._target.host, host
        del family
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Do nothing."""


class Transport:
    """Delivers messages."""

    def __init__(
        self,
        *,
        rule: AddressRule = PUBLIC,
        attempt_s: float = 15.0,
        mail: Mail | None = None,
        lookup: Lookup | None = None,
        ssl: Any = True,
    ) -> None:
        """Take settings.

        Args:
            rule: where deliveries may go.
            attempt_s: the most seconds of an attempt.
            mail: the server of outgoing e-mail, if there is one.
            lookup: of hosts; by default the system's.
            ssl: how TLS is verified, as aiohttp takes it; by default with the system's
                authorities.
        """
        self._rule = rule
        self._attempt_s = attempt_s
        self._mail = mail
        self._lookup = lookup or _System().lookup
        self._ssl = ssl

    async def deliver(self, format_: Format, receiver: Receiver, event: CloudEvent) -> Outcome:
        """Try once to deliver an event."""
        try:
            async with asyncio.timeout(self._attempt_s):
                if format_ == "email":
                    return await self._send_mail(receiver, event)
                return await self._post(format_, receiver, event)
        except TimeoutError:
            return failure(f"no answer within {self._attempt_s:g} s")
        except AddressRefused as error:
            return failure(str(error))
        except (OSError, aiohttp.ClientError, ValueError) as error:
            return failure(f"{type(error).__name__}: {error}"[:500])

    async def _post(self, format_: Format, receiver: Receiver, event: CloudEvent) -> Outcome:
        target = target_of(receiver.url, plain=self._rule.plain)
        addresses = await self._addresses(target)
        body = body_of(format_, event)
        headers = headers_of(format_, event, body, receiver.key, time.time())
        connector = aiohttp.TCPConnector(
            resolver=_Pinned(target, addresses), use_dns_cache=False, force_close=True, limit=1
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=self._attempt_s),
            ) as session,
            session.post(
                target.url, data=body, headers=headers, allow_redirects=False, ssl=self._ssl
            ) as answer,
        ):
            text = (await answer.content.read(ANSWER_BYTES_MAX)).decode("utf-8", "replace")
            return _read(answer.status, answer.headers.get("Retry-After", ""), text)

    async def _addresses(self, target: Target) -> list[str]:
        """Return where to connect to: all addresses of the host are checked, and none other used.

        Raises:
            AddressRefused: one of them is not allowed.
        """
        if target.literal is not None:
            return [str(check_address(target.host, self._rule.allowed))]
        found = list(dict.fromkeys(await self._lookup(target.host, target.port)))
        if not found:
            raise AddressRefused(f"the host {target.host} has no address")
        return [str(check_address(each, self._rule.allowed)) for each in found]

    async def _send_mail(self, receiver: Receiver, event: CloudEvent) -> Outcome:
        mail = self._mail
        if mail is None:
            return failure("no server of outgoing e-mail is set (--smtp)")
        try:
            await aiosmtplib.send(
                mail_of(event, mail.sender, receiver.mail_to),
                hostname=mail.host,
                port=mail.port,
                username=mail.user or None,
                password=mail.password or None,
                use_tls=mail.tls == "always",
                start_tls={"always": False, "start": True, "none": False}[mail.tls],
                timeout=self._attempt_s,
            )
        except aiosmtplib.SMTPException as error:
            return failure(str(error)[:500], getattr(error, "code", None))
        return Outcome(delivered=True)


def _read(status: int, retry_after: str, text: str) -> Outcome:
    if 200 <= status < 300:
        return Outcome(delivered=True, status=status)
    reason = f"answered {status}"
    if 300 <= status < 400:
        reason += ": redirects are not followed"
    elif text:
        reason += f": {' '.join(text[:200].split())}"
    return Outcome(
        delivered=False,
        status=status,
        reason=reason,
        retry_after_s=_seconds(retry_after),
        gone=status == _GONE,
    )


def _seconds(text: str) -> float:
    """Return the seconds of a `Retry-After`: a number, or a date."""
    try:
        found = float(text)
    except ValueError:
        try:
            found = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return min(max(found, 0.0), _RETRY_AFTER_MAX_S) if math.isfinite(found) else 0.0


class _System:
    """Look-ups by the system, in threads of their own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS, "webhooks-lookup")

    async def lookup(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host."""

        def work() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return [str(each[4][0]) for each in found]

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
