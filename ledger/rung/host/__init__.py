"""The loop around a decider: read, evolve, decide, append; and what goes with it."""

from rung.host.audit import Difference, Verdict, audit
from rung.host.fold import PartitionFold, Rejected
from rung.host.forward import forward
from rung.host.loop import host
from rung.host.process import Process
from rung.host.rejection import dead_letter, say_rejected
from rung.host.share import Portion, Share, Whole
from rung.host.writer import FactWriter, now

__all__ = [
    "Difference",
    "FactWriter",
    "PartitionFold",
    "Portion",
    "Process",
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
