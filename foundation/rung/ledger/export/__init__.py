"""Export of a ledger as JSON lines, and its import."""
