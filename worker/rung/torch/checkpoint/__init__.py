"""Checkpoints of a trial: its state, written to files and read from them."""
