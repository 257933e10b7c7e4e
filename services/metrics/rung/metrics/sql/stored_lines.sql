-- Which lines of a trial are stored, within a range of times and sequences.
SELECT DISTINCT origin, time_ms, sequence, line
FROM logs
WHERE experiment_id = {experiment:String} AND trial_id = {trial:String}
    AND time_ms >= {since:Int64} AND time_ms <= {until:Int64}
    AND sequence >= {low:UInt64} AND sequence <= {high:UInt64}
