"""Checkpoints: their writer and reader, and the object store below them."""
