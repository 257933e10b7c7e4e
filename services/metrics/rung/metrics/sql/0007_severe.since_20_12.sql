-- Lines of level warning and above once more, by level: a page of rare ones reads rows that lie
-- together, where the table of all lines gives a granule of 8,192 rows for each of them. One row in
-- a hundred being such a line, it takes a hundredth of the room.
CREATE TABLE IF NOT EXISTS severe
(
    experiment_id String,
    level Enum8('debug' = 10, 'info' = 20, 'warning' = 30, 'error' = 40, 'critical' = 50),
    time_ms Int64 CODEC(Delta, LZ4),
    trial_id String,
    sequence UInt64,
    line UInt32,
    origin String,
    run UInt32,
    rank UInt32,
    stream Enum8('stdout' = 1, 'stderr' = 2, 'platform' = 3, 'dropped' = 4),
    text String CODEC(ZSTD),
    keep_days UInt16,
    INDEX by_trial trial_id TYPE bloom_filter GRANULARITY 1,
    INDEX by_text lowerUTF8(text) TYPE ngrambf_v1(3, 65536, 2, 0) GRANULARITY 1
)
ENGINE = ReplacingMergeTree
ORDER BY (experiment_id, level, time_ms, trial_id, sequence, line, origin)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Filled by the server, so that lines come in as well that a replica of an older version writes
-- while the installation is upgraded.
CREATE MATERIALIZED VIEW IF NOT EXISTS severe_lines TO severe AS
SELECT
    experiment_id, level, time_ms, trial_id, sequence, line, origin, run, rank, stream, text,
    keep_days
FROM logs
WHERE level IN ('warning', 'error', 'critical');

-- Those that are there already; what comes in meanwhile comes twice, and is one row by its key.
INSERT INTO severe
    (experiment_id, level, time_ms, trial_id, sequence, line, origin, run, rank, stream, text,
     keep_days)
SELECT
    experiment_id, level, time_ms, trial_id, sequence, line, origin, run, rank, stream, text,
    keep_days
FROM logs
WHERE level IN ('warning', 'error', 'critical');
