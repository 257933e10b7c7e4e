"""The ledger: the port, and one adapter per technology."""

from rung.ledger.port import Draft, Ledger, Record

__all__ = ["Draft", "Ledger", "Record"]
