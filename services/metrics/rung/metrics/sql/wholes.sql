-- Curves as a whole, of some trials, from their stretches of one level: first and last step, reports,
-- whether one is not finite, whether they are in doubt.
SELECT
    trial_id,
    min(low) AS first,
    max(high) AS last,
    sum(reports) AS total,
    max(odd) AS has_odd,
    max(reports != toInt64(bits)) AS doubtful
FROM
(
    SELECT
        trial_id,
        min(given.low.1) AS low,
        max(given.high.1) AS high,
        max(NOT isFinite(given.odd.2)) AS odd,
        sum(given.rows) AS reports,
        bitCount(groupBitOr(given.slots)) AS bits
    FROM stretches AS given
    WHERE experiment_id = {experiment:String}
        AND kind = {kind:String}
        AND name = {name:String}
        AND level = {level:UInt8}
        AND {chosen}
    GROUP BY trial_id, stretch
)
GROUP BY trial_id
ORDER BY trial_id
