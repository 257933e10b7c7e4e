-- Printed lines by time, from behind a line on.
SELECT
    trial_id, run, rank, stream, level, time_ms, text, sequence, line, origin
FROM logs FINAL
WHERE ({experiment:String} = '' OR experiment_id = {experiment:String})
    AND ({trial:String} = '' OR trial_id = {trial:String})
    AND ({rank:Int64} < 0 OR rank = {rank:Int64})
    AND level >= {level:Int8}
    AND ({text:String} = '' OR positionCaseInsensitiveUTF8(text, {text:String}) > 0)
    AND time_ms >= {since:Int64}
    AND time_ms < {until:Int64}
    AND (time_ms, trial_id, sequence, line, origin)
        > ({after_time:Int64}, {after_trial:String}, {after_sequence:UInt64}, {after_line:Int64},
           {after_origin:String})
ORDER BY time_ms, trial_id, sequence, line, origin
LIMIT {limit:UInt32}
