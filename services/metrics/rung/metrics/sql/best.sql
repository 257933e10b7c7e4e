-- Each trial's best validation, from the reports; of equal ones the earliest. Numbers that are not finite never win.
-- `sign` is 1 where smaller is better, -1 where larger is.
SELECT
    trial_id,
    argMin(step, ({sign:Float64} * value, step)) AS best_step,
    argMin(value, ({sign:Float64} * value, step)) AS best_value
FROM metrics FINAL
WHERE experiment_id = {experiment:String}
    AND kind = {kind:String}
    AND name = {name:String}
    AND {chosen}
    AND isFinite(value)
GROUP BY trial_id
ORDER BY trial_id
