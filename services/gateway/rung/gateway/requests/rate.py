"""Rate limits: how many requests a token may send, by a token bucket for each.

A bucket holds tickets, is full at first, and fills at a constant rate up to its size; a request
takes one, and is refused with 429 where there is none. Reads and writes have buckets of their own;
a stream counts once, when it begins. Each replica counts by itself. Clients on the server's own
Unix socket are not limited.

An answer says where its token is: `RateLimit-Limit` is the size of the bucket,
`RateLimit-Remaining` what is left, `RateLimit-Reset` in how many seconds it is full again.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct

from rung.gateway.identity.principal import PRINCIPAL
from rung.gateway.problem import Problem
from rung.runtime.metrics import catalog

Kind = Literal["read", "write"]

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BUCKETS_MAX: Final = 20_000
"""Of tokens that were used last; a bucket that was dropped begins full."""


class Rates(Struct, frozen=True, kw_only=True):
    """Requests that one token may send; 0: as many as it likes.

    Raises:
        ValueError: a value is out of range.
    """

    reads_per_s: float = 0.0
    writes_per_s: float = 0.0
    burst_s: float = 10.0
    """How many seconds' requests may be sent at once after a pause."""

    def __post_init__(self) -> None:
        for name in ("reads_per_s", "writes_per_s", "burst_s"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}: give a number from 0 on")

    def of(self, kind: Kind) -> "Rate | None":
        """Return the rate of reads or of writes, None if they are not limited."""
        per_s = self.reads_per_s if kind == "read" else self.writes_per_s
        return Rate(per_s, max(1, math.floor(per_s * self.burst_s))) if per_s > 0 else None


class Rate(NamedTuple):
    """How fast a bucket fills, and how much it holds."""

    per_s: float
    size: int


class Bucket(NamedTuple):
    """What a bucket held at a time."""

    tickets: float
    at_s: float


class Taken(NamedTuple):
    """What became of a request."""

    bucket: Bucket
    is_allowed: bool
    remaining: int
    full_in_s: float
    retry_in_s: float
    """0 where it is allowed."""


def take(bucket: Bucket | None, rate: Rate, now_s: float) -> Taken:
    """Take a ticket for a request, if there is one.

    Args:
        bucket: of its token; None: full.
        rate: of its kind.
        now_s: the time; one that lies before that of the bucket counts as that.
    """
    bucket = bucket or Bucket(rate.size, now_s)
    passed_s = max(0.0, now_s - bucket.at_s)
    tickets = min(rate.size, bucket.tickets + passed_s * rate.per_s)
    is_allowed = tickets >= 1.0
    tickets -= is_allowed
    return Taken(
        Bucket(tickets, max(now_s, bucket.at_s)),
        is_allowed=is_allowed,
        remaining=math.floor(tickets),
        full_in_s=(rate.size - tickets) / rate.per_s,
        retry_in_s=0.0 if is_allowed else (1.0 - tickets) / rate.per_s,
    )


class _Limit(NamedTuple):
    rate: Rate
    taken: Taken

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.rate.size),
            "RateLimit-Remaining": str(self.taken.remaining),
            "RateLimit-Reset": str(math.ceil(self.taken.full_in_s)),
        }


_LIMIT: Final = web.RequestKey("limit", _Limit)


def limit_rate(rates: Rates, clock: Callable[[], float] = time.monotonic) -> Middleware:
    """Return a middleware that refuses requests of a token beyond its rate."""
    buckets: OrderedDict[tuple[str, Kind], Bucket] = OrderedDict()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        kind: Kind = "read" if request.method in _READING else "write"
        rate, principal = rates.of(kind), request.get(PRINCIPAL)
        if rate is None or principal is None or _is_local(request):
            return await handler(request)
        of = principal.via, kind
        taken = take(buckets.get(of), rate, clock())
        buckets[of] = taken.bucket
        buckets.move_to_end(of)
        if len(buckets) > _BUCKETS_MAX:
            buckets.popitem(last=False)
        request[_LIMIT] = _Limit(rate, taken)
        if not taken.is_allowed:
            catalog.HTTP_LIMITED.labels(kind).inc()
            wait_s = math.ceil(taken.retry_in_s)
            seconds = "1 second" if wait_s == 1 else f"{wait_s} seconds"
            raise Problem(
                429,
                "too-many-requests",
                f"this token may send {rate.per_s:g} {kind}s a second, {rate.size} at once; try"
                f" again in {seconds} (Retry-After), or follow a stream in place of many reads",
                headers={"Retry-After": str(wait_s)},
            )
        return await handler(request)

    return check


async def send_rate(request: web.Request, response: web.StreamResponse) -> None:
    """Add to an answer what its token has left."""
    limit = request.get(_LIMIT)
    if limit is not None:
        response.headers.update(limit.headers)


def _is_local(request: web.Request) -> bool:
    """Return whether a request came over the server's Unix socket."""
    name = None if request.transport is None else request.transport.get_extra_info("sockname")
    return isinstance(name, str | bytes)
