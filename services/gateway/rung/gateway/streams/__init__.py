"""Streams: server-sent events of what is appended to the ledger."""
