"""Keeps the checkpoints worth keeping, and deletes the rest."""

from rung.checkpoint_gc.processor import CheckpointGC

__all__ = ["CheckpointGC"]
