-- Whether the table of severe lines is there, and filled.
SELECT count()
FROM migrations
WHERE number = 7
