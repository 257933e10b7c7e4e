-- An insert is on disk when it returns, so that positions never outrun their rows. A server from
-- before these settings writes through the system's cache: there a power cut, but no crash of the
-- server, can take rows whose positions stay.
ALTER TABLE metrics MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE logs MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE positions MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE ledgers MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
