-- Whether a migration was applied, from its beginning to its end.
SELECT count()
FROM migrations
WHERE number = {migration:UInt32}
