"""What the services measure, by names that last: what dashboard and alerts are held against.

That the code measures just this is tested in `test_measured.py`.
"""

from collections.abc import Mapping
from typing import Final

_COUNTERS_AND_GAUGES: Final[Mapping[str, str]] = {
    "rung_agent_suspended": "",
    "rung_agents": "pool state",
    "rung_archive_lag_records": "",
    "rung_archive_segments_total": "",
    "rung_build_info": "version service",
    "rung_checkpoints_deleted_total": "",
    "rung_dead_letters_total": "reader",
    "rung_decisions_total": "process",
    "rung_experiments": "state",
    "rung_facts_decided_total": "process",
    "rung_http_connections": "port",
    "rung_http_connections_cut_total": "port reason",
    "rung_http_limited_total": "kind",
    "rung_http_requests_total": "method route status",
    "rung_keys_left_alone": "process partition",
    "rung_lag_records": "consumer topic partition",
    "rung_ledger_errors_total": "kind",
    "rung_loop_restarts_total": "loop",
    "rung_partitions_held": "topic",
    "rung_retries_total": "what",
    "rung_queue_length": "pool",
    "rung_reads_untraced_total": "",
    "rung_runs": "state",
    "rung_sealed_records_total": "topic",
    "rung_series_pending_bytes": "",
    "rung_series_rows_total": "table",
    "rung_series_lacked_rows_total": "table",
    "rung_slots": "pool state",
    "rung_snapshot_age_seconds": "process partition",
    "rung_spool_bytes": "",
    "rung_spool_oldest_seconds": "",
    "rung_spool_records": "",
    "rung_trial_restarts_total": "",
    "rung_trials": "state",
}
_HISTOGRAMS: Final[Mapping[str, str]] = {
    "rung_append_seconds": "topic",
    "rung_decide_seconds": "process",
    "rung_http_seconds": "route",
    "rung_objects_seconds": "operation",
    "rung_queue_wait_seconds": "pool",
    "rung_series_flush_seconds": "",
}

OF_EVERY_TARGET: Final = frozenset({"job", "instance", "component"})
"""Labels that Prometheus puts on what it scrapes."""

OF_EVERY_PROCESS: Final = frozenset(
    {
        "up",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
)
"""What Prometheus and its client library measure of each process."""

MEASURED: Final[Mapping[str, frozenset[str]]] = {
    **{name: frozenset(labels.split()) for name, labels in _COUNTERS_AND_GAUGES.items()},
    **{
        f"{name}{part}": frozenset([*labels.split(), *(["le"] if part == "_bucket" else [])])
        for name, labels in _HISTOGRAMS.items()
        for part in ("_bucket", "_count", "_sum")
    },
}
"""The labels of each time series."""
