"""The runtime: everything that reads the ledger runs on it; see `service.py` and its kinds."""

from rung.runtime.assignment.assignment import AllPartitions, Assignment, ChangingAssignment
from rung.runtime.audit.decisions import Difference, Verdict, audit
from rung.runtime.deadletter import dead_letter, log_rejected
from rung.runtime.fact_writer import FactWriter, now
from rung.runtime.processor.fold import PartitionFold, Rejected
from rung.runtime.processor.loop import host
from rung.runtime.processor.processor import Processor

__all__ = [
    "AllPartitions",
    "Assignment",
    "ChangingAssignment",
    "Difference",
    "FactWriter",
    "PartitionFold",
    "Processor",
    "Rejected",
    "Verdict",
    "audit",
    "dead_letter",
    "host",
    "log_rejected",
    "now",
]
