-- Curves with stretches of which reports were stored twice or replaced, or that are being built anew.
SELECT DISTINCT experiment_id, kind, name, trial_id
FROM
(
    SELECT experiment_id, kind, name, trial_id
    FROM stretches
    WHERE level = 0
    GROUP BY experiment_id, kind, name, trial_id, stretch
    HAVING sum(rows) != bitCount(groupBitOr(slots))
)
ORDER BY experiment_id, kind, name, trial_id
SETTINGS optimize_aggregation_in_order = 1
