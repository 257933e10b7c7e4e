-- How many lines of each trial were printed before a time, and the bytes of their text.
SELECT experiment_id, trial_id, count() AS lines, sum(length(text)) AS size_bytes
FROM logs FINAL
WHERE ({experiment:String} = '' OR experiment_id = {experiment:String})
    AND time_ms < {before:Int64}
    AND stream != 'dropped'
GROUP BY experiment_id, trial_id
ORDER BY experiment_id, trial_id
