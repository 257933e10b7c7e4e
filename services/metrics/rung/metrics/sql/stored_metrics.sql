-- Which reports of a trial are stored, within a range of steps.
SELECT DISTINCT kind, name, step
FROM metrics
WHERE experiment_id = {experiment:String} AND trial_id = {trial:String}
    AND step >= {low:Int64} AND step <= {high:Int64}
