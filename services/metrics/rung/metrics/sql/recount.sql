-- Build the stretches of some curves anew from their reports. Meanwhile one more row of each level, a
-- mark, keeps the curve in doubt, so that it is read from its reports however this is interrupted.
INSERT INTO stretches (experiment_id, kind, name, level, trial_id, stretch, rows, time_ms)
SELECT DISTINCT experiment_id, kind, name, level, trial_id, {mark:UInt64}, 1, {now:Int64}
FROM stretches
WHERE (experiment_id, kind, name, trial_id) IN ({curves});

-- Marks of the last day stay: another process that was stalled may be at work. Older ones are those of
-- processes that were killed.
DELETE FROM stretches
WHERE (experiment_id, kind, name, trial_id) IN ({curves}) AND stretch < {old:UInt64};

-- A token of its own: what was deleted is not to be taken for a repetition of what was stored before.
INSERT INTO stretches
    (experiment_id, kind, name, level, trial_id, stretch, low, high, least, most, odd, slots, rows,
     time_ms)
SETTINGS insert_deduplication_token = '{mark:UInt64}'
SELECT
    experiment_id, kind, name, level, trial_id, stretch, low, high, least, most, odd, slots, rows,
    time_ms
FROM counted_stretches
WHERE (experiment_id, kind, name, trial_id) IN ({curves})
SETTINGS optimize_aggregation_in_order = 1, max_bytes_before_external_group_by = 200000000
