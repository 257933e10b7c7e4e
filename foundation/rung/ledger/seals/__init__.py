"""Seals: signed digests of ranges of records, in chains, to detect an altered ledger.

`rung.runtime.sealing.sealer` writes them; `verify` checks a ledger, an export or an archive.
Decision 0020 lists what they protect from, and what not.
"""

from rung.ledger.seals.chain import (
    HEADS,
    SEALED,
    TRIMMED,
    Chains,
    Head,
    Heads,
    decode_heads,
    draft_of,
    load_chains,
    make_seal,
    read_heads,
    record_trim,
    save_heads,
    seals_partition,
)
from rung.ledger.seals.digest import RangeHasher, group_name
from rung.ledger.seals.key import ENVIRONMENT, FILE, SealKey, parse_public, signed_by

__all__ = [
    "ENVIRONMENT",
    "FILE",
    "HEADS",
    "SEALED",
    "TRIMMED",
    "Chains",
    "Head",
    "Heads",
    "RangeHasher",
    "SealKey",
    "decode_heads",
    "draft_of",
    "group_name",
    "load_chains",
    "make_seal",
    "parse_public",
    "read_heads",
    "record_trim",
    "save_heads",
    "seals_partition",
    "signed_by",
]
