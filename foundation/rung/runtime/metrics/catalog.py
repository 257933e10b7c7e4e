"""Every metric of Rung: names, labels, and descriptions.

Tests compare the dashboard and the alerts under `deploy/` with this list. A name is as permanent
as an event's, because users' alerts depend on it.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from rung.runtime.metrics.meter import Meter

METER: Final = Meter()
"""The instruments of this process."""

_PER_FACT: Final = (
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 0.025, 0.1, 1.0,
)  # fmt: skip
_WAITS: Final = (
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86400.0,
)  # fmt: skip
_TRANSFERS: Final = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
)  # fmt: skip

# Every process --------------------------------------------------------------------------------

BUILD_INFO: Final = METER.gauge(
    "rung_build_info", "1; which version of which service this is.", "version", "service"
)
PARTITIONS_HELD: Final = METER.gauge(
    "rung_partitions_held", "Partitions of a topic that this process follows.", "topic"
)
LAG_RECORDS: Final = METER.gauge(
    "rung_lag_records",
    "Records between where a reader is and the end of the partition.",
    "consumer", "topic", "partition",
)  # fmt: skip
APPEND_SECONDS: Final = METER.histogram(
    "rung_append_seconds", "From asking for an append until it is durable.", "topic"
)
LEDGER_ERRORS: Final = METER.counter(
    "rung_ledger_errors_total",
    "What the ledger refused or failed, by the error's name; also asked by a probe.",
    "kind",
)
LOOP_RESTARTS: Final = METER.counter(
    "rung_loop_restarts_total", "Starts of a loop after the ledger failed it.", "loop"
)
RETRIES: Final = METER.counter(
    "rung_retries_total",
    "Tries that failed and are followed by another one, by what the log says of them.",
    "what",
)
DEAD_LETTERS: Final = METER.counter(
    "rung_dead_letters_total", "Messages that a reader could not fold.", "reader"
)
OBJECTS_SECONDS: Final = METER.histogram(
    "rung_objects_seconds",
    "Time of an operation of the object store.",
    "operation",
    bounds=_TRANSFERS,
)

# Deciders -------------------------------------------------------------------------------------

FACTS_DECIDED: Final = METER.counter(
    "rung_facts_decided_total", "Facts that a process folded.", "process"
)
DECISIONS: Final = METER.counter(
    "rung_decisions_total", "Decisions that a process appended.", "process"
)
DECIDE_SECONDS: Final = METER.histogram(
    "rung_decide_seconds",
    "Time of a batch, divided by the facts in it.",
    "process",
    bounds=_PER_FACT,
)
SNAPSHOT_AGE_SECONDS: Final = METER.gauge(
    "rung_snapshot_age_seconds",
    "Since this process saved a partition's snapshot, or else since it began with the partition.",
    "process", "partition",
)  # fmt: skip
KEYS_LEFT_ALONE: Final = METER.gauge(
    "rung_keys_left_alone",
    "Experiments or pools of which this release cannot fold what is on record.",
    "process", "partition",
)  # fmt: skip
TRIAL_RESTARTS: Final = METER.counter(
    "rung_trial_restarts_total", "Runs of trials that were asked for after a failure."
)

# Pools: slots and queues from the scheduler, agents from the gateway ----------------------------

SLOTS: Final = METER.gauge("rung_slots", "Slots of a pool, `free` or `used`.", "pool", "state")
AGENTS: Final = METER.gauge(
    "rung_agents",
    "A pool's agents: `alive`, `suspended`, `draining`, or `lost` within a day.",
    "pool",
    "state",
)
QUEUE_LENGTH: Final = METER.gauge("rung_queue_length", "Allocations that wait for slots.", "pool")
QUEUE_WAIT_SECONDS: Final = METER.histogram(
    "rung_queue_wait_seconds",
    "From an allocation's request to its grant, as the scheduler met them.",
    "pool",
    bounds=_WAITS,
)

# Searches and requests, from the gateway --------------------------------------------------------

EXPERIMENTS: Final = METER.gauge("rung_experiments", "Experiments by state.", "state")
TRIALS: Final = METER.gauge("rung_trials", "Trials by state.", "state")
HTTP_REQUESTS: Final = METER.counter(
    "rung_http_requests_total", "Requests that were answered.", "method", "route", "status"
)
HTTP_SECONDS: Final = METER.histogram(
    "rung_http_seconds", "Time of an answer; of a stream, how long it was listened to.", "route"
)
HTTP_LIMITED: Final = METER.counter(
    "rung_http_limited_total", "Requests refused by a token's rate: read or write.", "kind"
)
READS_UNTRACED: Final = METER.counter(
    "rung_reads_untraced_total", "Reads that are missing in the trail of reads."
)
HTTP_CONNECTIONS: Final = METER.gauge(
    "rung_http_connections", "Open connections, by port: http, probe, rendezvous.", "port"
)
HTTP_CONNECTIONS_CUT: Final = METER.counter(
    "rung_http_connections_cut_total",
    "Connections that were refused or cut: limits, time-outs, malformed requests.",
    "port",
    "reason",
)

# Agents -----------------------------------------------------------------------------------------

RUNS: Final = METER.gauge("rung_runs", "Runs on an agent, `preparing` or `running`.", "state")
AGENT_SUSPENDED: Final = METER.gauge(
    "rung_agent_suspended", "1 while an agent takes nothing new because its disk fails, else 0."
)
SPOOL_RECORDS: Final = METER.gauge(
    "rung_spool_records", "Facts that an agent holds because the ledger has them not yet."
)
SPOOL_BYTES: Final = METER.gauge("rung_spool_bytes", "Size of the file that holds them.")
SPOOL_OLDEST_SECONDS: Final = METER.gauge(
    "rung_spool_oldest_seconds", "For how long the oldest of them has been held."
)

# Metrics and logs -------------------------------------------------------------------------------

SERIES_ROWS: Final = METER.counter("rung_series_rows_total", "Rows that ClickHouse took.", "table")
SERIES_LACKED: Final = METER.counter(
    "rung_series_lacked_rows_total", "Rows that ClickHouse lacked, written again.", "table"
)
SERIES_PENDING_BYTES: Final = METER.gauge(
    "rung_series_pending_bytes", "Records that wait to be written into ClickHouse."
)
SERIES_FLUSH_SECONDS: Final = METER.histogram(
    "rung_series_flush_seconds", "Time that ClickHouse takes for a batch."
)

# Checkpoints and the archive --------------------------------------------------------------------

CHECKPOINTS_DELETED: Final = METER.counter(
    "rung_checkpoints_deleted_total", "Checkpoints whose files were deleted."
)
ARCHIVE_SEGMENTS: Final = METER.counter(
    "rung_archive_segments_total", "Segments that the archive took."
)
ARCHIVE_LAG_RECORDS: Final = METER.gauge(
    "rung_archive_lag_records", "Records of the ledger that are not in the archive yet."
)
SEALED_RECORDS: Final = METER.counter(
    "rung_sealed_records_total", "Records that were sealed, by topic.", "topic"
)


def build() -> str:
    """Return this version of Rung."""
    try:
        return version("rung")
    except PackageNotFoundError:
        return "unknown"
