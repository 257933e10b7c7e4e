"""The loop around a decider: read, evolve, decide, append; and what goes with it."""

from rung.host.process import Process

__all__ = ["Process"]
