-- Every metric that an experiment reported.
SELECT DISTINCT kind, name
FROM names
WHERE experiment_id = {experiment:String}
ORDER BY kind, name
