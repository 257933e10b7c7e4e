"""Sinks: effects outside of the ledger, at least once, with an idempotency key."""
