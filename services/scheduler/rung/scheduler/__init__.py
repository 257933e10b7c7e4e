"""Places what experiments ask for onto the slots of a pool's agents."""

from rung.scheduler.processor import Scheduler

__all__ = ["Scheduler"]
