"""Counter-based random draws: reproducible on every machine and in any order.

There is no generator state: each draw is BLAKE2b (RFC 7693; 16 bytes, personalised with
`rung.searcher.v1`) over the JSON list `[seed, purpose, trial index, *path]`, and the digest is
read as one integer below 2**128. So a trial's hyperparameters do not depend on which trial
finished first, and a parameter that joins a search space changes no draw of the others.

`pow` of the C library may differ in the last bit between machines; `power` computes in decimal,
which is exact by definition.
"""

import hashlib
import sys
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Final

import msgspec

_PERSON: Final = b"rung.searcher.v1"
_BITS: Final = 128
_MANTISSA: Final = 53
_DIGITS: Final = 40
"""Decimal digits to compute with; a float has 17."""
_SEED_MAX: Final = 2**31


def integer_below(limit: int, seed: int, purpose: str, index: int, path: Sequence[str]) -> int:
    """Return one of `0 … limit-1`, all of them equally likely (to within 2**-64 and less)."""
    return _bits(seed, purpose, index, path) * limit >> _BITS


def uniform(seed: int, purpose: str, index: int, path: Sequence[str]) -> float:
    """Return a multiple of 2**-53 in [0, 1)."""
    return (_bits(seed, purpose, index, path) >> (_BITS - _MANTISSA)) * 2.0**-_MANTISSA


def trial_seed(seed: int, index: int) -> int:
    """Return the seed of a trial, 0 to 2**31 - 1."""
    return integer_below(_SEED_MAX, seed, "trial", index, ())


def power(base: float, exponent: float) -> float:
    """Return base ** exponent for a positive base, to the last bit the same everywhere.

    A result beyond the largest float becomes the largest float.
    """
    context = Context(prec=_DIGITS, Emax=999_999, Emin=-999_999, traps=[])
    logarithm = context.multiply(context.ln(Decimal(base)), Decimal(exponent))
    return min(float(context.exp(logarithm)), sys.float_info.max)


def _bits(seed: int, purpose: str, index: int, path: Sequence[str]) -> int:
    name = msgspec.json.encode([seed, purpose, index, *path])
    digest = hashlib.blake2b(name, digest_size=_BITS // 8, person=_PERSON).digest()
    return int.from_bytes(digest, "big")
