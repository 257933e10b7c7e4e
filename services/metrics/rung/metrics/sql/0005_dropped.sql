-- A mark in a log says how many lines are missing at its place; no script can print such a line.
ALTER TABLE logs MODIFY COLUMN stream
    Enum8('stdout' = 1, 'stderr' = 2, 'platform' = 3, 'dropped' = 4);

-- What users had deleted: of a trial, all lines that were printed before a time.
CREATE TABLE IF NOT EXISTS deletions
(
    experiment_id String,
    trial_id String,
    before_ms Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (experiment_id, trial_id, before_ms);
