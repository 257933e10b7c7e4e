"""Sealing of a ledger: signed digests of what was appended, and their anchor outside of it."""
