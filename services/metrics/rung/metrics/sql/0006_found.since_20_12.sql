-- A page of lines by trial, by level or by text reads the granules that may hold such lines, and no
-- others. Of ten million lines of 100 bytes the indexes take 50 MB.
ALTER TABLE logs
    ADD INDEX IF NOT EXISTS by_trial trial_id TYPE bloom_filter GRANULARITY 1,
    ADD INDEX IF NOT EXISTS by_level level TYPE minmax GRANULARITY 1,
    ADD INDEX IF NOT EXISTS by_text lowerUTF8(text) TYPE ngrambf_v1(3, 65536, 2, 0) GRANULARITY 1;
-- Parts that are there already get their indexes in the background.
ALTER TABLE logs MATERIALIZE INDEX by_trial;
ALTER TABLE logs MATERIALIZE INDEX by_level;
ALTER TABLE logs MATERIALIZE INDEX by_text;

-- The experiment's `logs.keep_days`, 0: as long as the installation keeps lines.
ALTER TABLE logs ADD COLUMN IF NOT EXISTS keep_days UInt16;
