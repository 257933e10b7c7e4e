-- What the metrics service keeps. Every row follows from the ledger: delete the folder, and all of
-- it is built again.

-- One row per trial, kind, name and step. Of several the one with the highest version stays: the
-- newest run's, and of that the report that was given last.
CREATE TABLE IF NOT EXISTS metrics
(
    experiment_id String,
    trial_id String,
    kind String,
    name String,
    step Int64,
    value Float64,
    time_ms Int64,
    run UInt32,
    version UInt64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (experiment_id, kind, name, trial_id, step);

-- One row per printed line. `origin`, `sequence` and `line` say which line of which event it is, so
-- that a line delivered twice is one line.
CREATE TABLE IF NOT EXISTS logs
(
    experiment_id String,
    time_ms Int64,
    trial_id String,
    sequence UInt64,
    line UInt32,
    origin String,
    run UInt32,
    rank UInt32,
    stream Enum8('stdout' = 1, 'stderr' = 2, 'platform' = 3),
    level Enum8('debug' = 10, 'info' = 20, 'warning' = 30, 'error' = 40, 'critical' = 50),
    text String
)
ENGINE = ReplacingMergeTree
ORDER BY (experiment_id, time_ms, trial_id, sequence, line, origin);

-- Up to where each partition of the ledger is stored; written after the rows it speaks for.
CREATE TABLE IF NOT EXISTS positions
(
    topic String,
    partition UInt32,
    position UInt64
)
ENGINE = ReplacingMergeTree(position)
ORDER BY (topic, partition);

-- The ledger that all of this was derived from.
CREATE TABLE IF NOT EXISTS ledgers
(
    id String
)
ENGINE = ReplacingMergeTree
ORDER BY id;
