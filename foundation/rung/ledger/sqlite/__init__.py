"""The ledger as one SQLite file: the adapter of one machine."""
