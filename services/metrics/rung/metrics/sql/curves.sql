-- Curves of at most `points` points each, from their reports.
-- A longer curve is cut into stretches of 2 ** n steps, n being the least that suffices; a stretch begins
-- at a multiple of its width. Each keeps its lowest and highest value and its first one that is not
-- finite. The first and the last point of the curve always stay.
-- Reports are taken by step, so that of equal values the earliest stays.
SELECT trial_id, arraySort(groupArray(point)) AS points
FROM
(
    SELECT trial_id, point
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
                multiIf(
                    total <= {points:UInt32}, place,
                    stretches < 2, toUInt64(0),
                    bitShiftRight(place, width)) AS stretch
            FROM
            (
                SELECT
                    trial_id, step, value, time_ms,
                    toUInt64(step) + 9223372036854775808 AS place
                FROM metrics FINAL
                WHERE experiment_id = {experiment:String}
                    AND kind = {kind:String}
                    AND name = {name:String}
                    AND {chosen}
                ORDER BY trial_id, step
            ) AS reports
            ALL INNER JOIN
            (
                SELECT
                    trial_id, total, low, low_value, low_time, high, high_value, high_time, stretches,
                    arrayFirst(
                        n -> toUInt64(bitShiftRight(toUInt64(high) + 9223372036854775808, n)
                            - bitShiftRight(toUInt64(low) + 9223372036854775808, n)) < stretches,
                        range(64)) AS width
                FROM
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
                        intDiv({points:UInt32} - 2, if(countIf(NOT isFinite(value)) > 0, 3, 2))
                            AS stretches
                    FROM metrics FINAL
                    WHERE experiment_id = {experiment:String}
                        AND kind = {kind:String}
                        AND name = {name:String}
                        AND {chosen}
                    GROUP BY trial_id
                )
            ) AS wholes
            USING trial_id
        )
        GROUP BY trial_id, stretch
    )
    ORDER BY trial_id, point.1
    LIMIT 1 BY trial_id, point.1
)
GROUP BY trial_id
ORDER BY trial_id
SETTINGS max_threads = 1
