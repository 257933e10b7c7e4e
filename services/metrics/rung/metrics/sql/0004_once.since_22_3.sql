-- A batch that is written again because its answer was lost is recognised by its digest, so that
-- no merge has to take its rows out. Replicated tables do this by themselves.
ALTER TABLE metrics MODIFY SETTING non_replicated_deduplication_window = 100;
ALTER TABLE logs MODIFY SETTING non_replicated_deduplication_window = 100;
