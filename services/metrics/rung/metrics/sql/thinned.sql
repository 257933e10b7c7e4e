-- Thinned curves as `curves.sql` gives them, from the stretches of one level: 2 ** `shift` of these are
-- one of the curve's. Sorted arrays, because `min` and `max` of tuples take several times as long.
SELECT
    trial_id,
    arraySort(arrayDistinct(arrayConcat(groupArrayArray(points), [min(low), max(high)]))) AS points
FROM
(
    SELECT
        trial_id,
        arraySort(groupArray(given.low))[1] AS low,
        arrayReverseSort(groupArray(given.high))[1] AS high,
        arraySort(groupArray(given.least))[1] AS least,
        arrayReverseSort(groupArray(given.most))[1] AS most,
        arraySort(groupArray(given.odd))[1] AS odd,
        arrayConcat(
            if(isFinite(least.1),
                [(least.2, least.1, least.3), (bitNot(most.2), most.1, most.3)], []),
            if(isFinite(odd.2), [], [odd])) AS points
    FROM stretches AS given
    WHERE experiment_id = {experiment:String}
        AND kind = {kind:String}
        AND name = {name:String}
        AND level = {level:UInt8}
        AND {chosen}
    GROUP BY trial_id, bitShiftRight(stretch, {shift:UInt8})
)
GROUP BY trial_id
ORDER BY trial_id
