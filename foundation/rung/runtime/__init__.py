"""The loop around a decider: read, evolve, decide, append; and what goes with it."""

from rung.runtime.assignment import Portion, Share, Whole
from rung.runtime.audit import Difference, Verdict, audit
from rung.runtime.deadletter import dead_letter, say_rejected
from rung.runtime.fact_writer import FactWriter, now
from rung.runtime.fold import PartitionFold, Rejected
from rung.runtime.forward import forward
from rung.runtime.loop import host
from rung.runtime.processor import Processor

__all__ = [
    "Difference",
    "FactWriter",
    "PartitionFold",
    "Portion",
    "Processor",
    "Rejected",
    "Share",
    "Verdict",
    "Whole",
    "audit",
    "dead_letter",
    "forward",
    "host",
    "now",
    "say_rejected",
]
