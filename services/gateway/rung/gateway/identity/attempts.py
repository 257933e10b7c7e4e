"""Limits of failed sign-ins: by account and address, by account, and by address.

After a few failures of a key the next attempt has to wait, twice as long each time. Attempts by
one address at one account are slowed down soonest; an account as a whole much later and for a
minute at most, so that strangers cannot lock its owner out for long. Each replica counts for
itself. What the clock says is given, so that nothing here reads it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

KEYS_MAX: Final = 20_000
FORGET_S: Final = 3600.0
"""A key without a failure for so long begins anew."""

Kind = Literal["account and address", "account", "address"]
Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class _Rule:
    free: int
    """Failures without a wait."""
    most_s: float
    """The longest wait."""


_RULES: Final[dict[Kind, _Rule]] = {
    "account and address": _Rule(5, 900.0),
    "account": _Rule(50, 60.0),
    "address": _Rule(100, 30.0),
}


@dataclass(slots=True)
class _Count:
    failures: int
    last_s: float


class Attempts:
    """The failures of late, of a limited number of keys."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._counts: OrderedDict[Key, _Count] = OrderedDict()
        self._keys_max = keys_max

    def __len__(self) -> int:
        return len(self._counts)

    def wait_s(self, keys: Iterable[Key], now_s: float) -> float:
        """Return how long an attempt with these keys has to wait; 0 if it may be made."""
        return max((self._wait_s(key, now_s) for key in keys), default=0.0)

    def failed(self, keys: Iterable[Key], now_s: float) -> None:
        """Note a failure, or an attempt before its outcome is known."""
        for key in keys:
            count = self._counts.pop(key, None)
            if count is None or now_s - count.last_s > FORGET_S:
                count = _Count(0, now_s)
            count.failures += 1
            count.last_s = now_s
            self._counts[key] = count
        while len(self._counts) > self._keys_max:
            self._counts.popitem(last=False)

    def succeeded(self, keys: Iterable[Key]) -> None:
        """Take the last attempt back, and forget failures of an account at an address."""
        for key in keys:
            count = self._counts.get(key)
            if count is None:
                continue
            count.failures -= 1
            if key[0] == "account and address" or count.failures <= 0:
                del self._counts[key]

    def _wait_s(self, key: Key, now_s: float) -> float:
        count = self._counts.get(key)
        if count is None or now_s - count.last_s > FORGET_S:
            return 0.0
        rule = _RULES[key[0]]
        over = count.failures - rule.free
        if over < 0:
            return 0.0
        pause_s = min(rule.most_s, 2.0 ** min(over, 30))
        return max(0.0, count.last_s + pause_s - now_s)


def keys_of(account: str, address: str) -> list[Key]:
    """Return the keys by which an attempt is limited."""
    name = account.casefold()[:256]
    return [
        ("account and address", f"{name}\n{address}"),
        ("account", name),
        ("address", address),
    ]
