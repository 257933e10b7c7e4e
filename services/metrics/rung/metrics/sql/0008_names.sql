-- Which metrics each trial reported, so that nobody has to look for them among the reports. Of
-- several rows the one with the newest report stays: a name goes when its newest report is too old.
CREATE TABLE IF NOT EXISTS names
(
    experiment_id String,
    kind String,
    name String,
    trial_id String,
    time_ms Int64
)
ENGINE = ReplacingMergeTree(time_ms)
ORDER BY (experiment_id, kind, name, trial_id);

-- Filled by the server, so that names come in as well that a replica of an older version reports
-- while the installation is upgraded.
CREATE MATERIALIZED VIEW IF NOT EXISTS reported_names TO names AS
SELECT experiment_id, kind, name, trial_id, max(time_ms) AS time_ms
FROM metrics
GROUP BY experiment_id, kind, name, trial_id;

-- An insert that began before there was the view has passed it by; by then it has ended. An empty table
-- is not waited for.
SELECT sleep(3) FROM (SELECT 1 FROM metrics LIMIT 1);

-- Those that are there already; what comes twice is one row by its key.
INSERT INTO names (experiment_id, kind, name, trial_id, time_ms)
SELECT experiment_id, kind, name, trial_id, max(time_ms) AS time_ms
FROM metrics
GROUP BY experiment_id, kind, name, trial_id;
