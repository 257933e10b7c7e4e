"""Places what experiments ask for onto the slots of a pool's agents."""

from rung.scheduler.machine import Scheduler

__all__ = ["Scheduler"]
