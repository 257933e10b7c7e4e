"""Processors: deterministic state machines per key, from facts to decisions."""
