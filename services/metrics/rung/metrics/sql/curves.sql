-- Curves of one trial, or of all (`trial` empty), of at most `points` points each.
-- A longer curve is cut into stretches of equal width; each keeps its lowest and highest value and
-- its first one that is not finite. The first and the last point of the curve always stay.
SELECT trial_id, point.1 AS step, point.2 AS value, point.3 AS time_ms
FROM
(
    SELECT
        trial_id,
        arrayJoin(arrayConcat(
            if(countIf(isFinite(value)) > 0,
                [argMinIf(p, (value, step), isFinite(value)),
                 argMinIf(p, (-value, step), isFinite(value))],
                []),
            if(countIf(NOT isFinite(value)) > 0, [argMinIf(p, step, NOT isFinite(value))], []),
            if(countIf(step = low) > 0, [argMinIf(p, step, step = low)], []),
            if(countIf(step = high) > 0, [argMinIf(p, step, step = high)], [])
        )) AS point
    FROM
    (
        SELECT
            trial_id, step, value, low, high,
            (step, value, time_ms) AS p,
            if(total <= {points:UInt32},
                step,
                toInt64(floor((toFloat64(step) - toFloat64(low)) * greatest(1, buckets)
                    / (toFloat64(high) - toFloat64(low) + 1)))) AS bucket
        FROM
        (
            SELECT trial_id, step, value, time_ms
            FROM metrics FINAL
            WHERE experiment_id = {experiment:String}
                AND kind = {kind:String}
                AND name = {name:String}
                AND ({trial:String} = '' OR trial_id = {trial:String})
        ) AS reports
        ALL INNER JOIN
        (
            SELECT
                trial_id,
                count() AS total,
                min(step) AS low,
                max(step) AS high,
                intDiv({points:UInt32} - 2, if(countIf(NOT isFinite(value)) > 0, 3, 2)) AS buckets
            FROM metrics FINAL
            WHERE experiment_id = {experiment:String}
                AND kind = {kind:String}
                AND name = {name:String}
                AND ({trial:String} = '' OR trial_id = {trial:String})
            GROUP BY trial_id
        ) AS wholes
        USING trial_id
    )
    GROUP BY trial_id, bucket
)
ORDER BY trial_id, step
LIMIT 1 BY trial_id, step
