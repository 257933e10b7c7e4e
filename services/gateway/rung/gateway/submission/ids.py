"""Names experiments: eight characters that a person can read out."""

import hashlib
import secrets
from typing import Final

from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.read_models import ReadModels

LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no i, l, o, u."""
LENGTH: Final = 8


async def choose(
    models: ReadModels, ledger_id: str, origin: str | None
) -> tuple[str, Experiment | None]:
    """Return an id that no other experiment has, and the experiment if it is there already.

    With an origin (of an idempotency key) it follows from that, so that the same key gives the
    same id also when nobody knows whether the first request was written.
    """
    attempt = 0
    while True:
        chosen = _derived(f"{ledger_id}|{origin}|{attempt}") if origin else _drawn()
        known = await models.experiment(chosen, validations=None)
        if known is None:
            return chosen, None
        if origin and known.submission is not None and known.submission.origin == origin:
            return chosen, known
        attempt += 1


def _drawn() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(LENGTH))


def _derived(text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=LENGTH).digest()
    return "".join(LETTERS[byte % len(LETTERS)] for byte in digest)
