-- Whether the table has the column of the experiments' own days.
SELECT count()
FROM system.columns
WHERE database = currentDatabase() AND table = 'logs' AND name = 'keep_days'
