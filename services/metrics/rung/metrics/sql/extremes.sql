-- The lowest and the highest finite point of curves, from their coarsest stretches, which hold the same
-- reports as those by which a curve is known to be exact.
SELECT trial_id, min(given.least) AS least, max(given.most) AS most
FROM stretches AS given
WHERE experiment_id = {experiment:String}
    AND kind = {kind:String}
    AND name = {name:String}
    AND level = 10
    AND {chosen}
GROUP BY trial_id
ORDER BY trial_id
