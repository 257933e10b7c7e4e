-- Curves of one trial, or of all (`trial` empty), of at most `points` points each.
-- A longer curve is cut into stretches of equal width; each keeps its lowest and highest value and
-- its first one that is not finite. The first and the last point of the curve always stay.
SELECT trial_id, point.1 AS step, point.2 AS value, point.3 AS time_ms
FROM
(
    SELECT
        trial_id,
        arrayJoin(arrayConcat(
            arraySlice(
                [(argMinIf(step, value, isFinite(value)),
                  minIf(value, isFinite(value)),
                  argMinIf(time_ms, value, isFinite(value))),
                 (argMaxIf(step, value, isFinite(value)),
                  maxIf(value, isFinite(value)),
                  argMaxIf(time_ms, value, isFinite(value)))],
                1, if(countIf(isFinite(value)) > 0, 2, 0)),
            arraySlice(
                [(minIf(step, NOT isFinite(value)),
                  argMinIf(value, step, NOT isFinite(value)),
                  argMinIf(time_ms, step, NOT isFinite(value)))],
                1, countIf(NOT isFinite(value)) > 0),
            arraySlice([(any(low), any(low_value), any(low_time))], 1, min(step) = any(low)),
            arraySlice([(any(high), any(high_value), any(high_time))], 1, max(step) = any(high))
        )) AS point
    FROM
    (
        SELECT
            trial_id, step, value, time_ms,
            low, low_value, low_time, high, high_value, high_time,
            if(total <= {points:UInt32},
                step,
                toInt64(floor((toFloat64(step) - toFloat64(low)) * greatest(1, stretches)
                    / (toFloat64(high) - toFloat64(low) + 1)))) AS stretch
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
                argMin(value, step) AS low_value,
                argMin(time_ms, step) AS low_time,
                max(step) AS high,
                argMax(value, step) AS high_value,
                argMax(time_ms, step) AS high_time,
                intDiv({points:UInt32} - 2, if(countIf(NOT isFinite(value)) > 0, 3, 2)) AS stretches
            FROM metrics FINAL
            WHERE experiment_id = {experiment:String}
                AND kind = {kind:String}
                AND name = {name:String}
                AND ({trial:String} = '' OR trial_id = {trial:String})
            GROUP BY trial_id
        ) AS wholes
        USING trial_id
    )
    GROUP BY trial_id, stretch
)
ORDER BY trial_id, step
LIMIT 1 BY trial_id, step
SETTINGS max_threads = 1
