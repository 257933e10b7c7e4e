-- How many lines of each trial were printed before a time, the bytes of their text, and the last time.
SELECT experiment_id, trial_id, count() AS lines, sum(length(text)) AS size_bytes, max(time_ms) AS last_ms
FROM logs FINAL
WHERE ({experiment:String} = '' OR experiment_id = {experiment:String})
    AND time_ms < {before:Int64}
    AND stream != 'dropped'
GROUP BY experiment_id, trial_id
ORDER BY experiment_id, trial_id
