-- Curves in stretches of 64, 2,048 and 65,536 steps (levels 0, 5 and 10), from which thinned curves
-- and best values are answered without their reports. `low` and `high` are the first and the last
-- point (step, value, time), `least` the lowest one as (value, step, time), `most` the highest as
-- (value, bitNot(step), time), so that of equal ones the earliest stays; `odd` is the first one that is
-- not finite. Neutral where there is none: `least` and `most` are infinite then, `odd` is finite.
-- A stretch has 64 slots of 1, 32 or 1,024 steps. `slots` has a bit for each that has a report, `rows`
-- counts the reports. Where both agree, each report has a slot of its own: none was replaced or stored
-- twice, and the stretch is what its reports say. Where not, the reports are read.
CREATE TABLE IF NOT EXISTS stretches
(
    experiment_id String,
    kind String,
    name String,
    level UInt8,
    trial_id String,
    stretch UInt64,
    low SimpleAggregateFunction(min, Tuple(Int64, Float64, Int64)),
    high SimpleAggregateFunction(max, Tuple(Int64, Float64, Int64)),
    least SimpleAggregateFunction(min, Tuple(Float64, Int64, Int64)),
    most SimpleAggregateFunction(max, Tuple(Float64, Int64, Int64)),
    odd SimpleAggregateFunction(min, Tuple(Int64, Float64, Int64)),
    slots SimpleAggregateFunction(groupBitOr, UInt64),
    rows SimpleAggregateFunction(sum, Int64),
    time_ms SimpleAggregateFunction(max, Int64)
)
ENGINE = AggregatingMergeTree
ORDER BY (experiment_id, kind, name, level, trial_id, stretch)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1,
    non_replicated_deduplication_window = 100, index_granularity = 1024;

ALTER TABLE names MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS reported_stretches TO stretches AS
SELECT
    experiment_id, kind, name, level, trial_id,
    bitShiftRight(narrow, level) AS stretch,
    (first, values[indexOf(steps, first)], times[indexOf(steps, first)]) AS low,
    (last, values[indexOf(steps, last)], times[indexOf(steps, last)]) AS high,
    (lowest, if(isFinite(lowest), lowest_step, 0),
        if(isFinite(lowest), times[indexOf(steps, lowest_step)], 0)) AS least,
    (highest, if(isFinite(highest), bitNot(highest_step), 0),
        if(isFinite(highest), times[indexOf(steps, highest_step)], 0)) AS most,
    if(has_odd, (odd_step, values[indexOf(steps, odd_step)], times[indexOf(steps, odd_step)]),
        (toInt64(9223372036854775807), 0., toInt64(0))) AS odd,
    multiIf(
        level = 0, narrow_slots,
        level = 5, bitShiftLeft(
            toUInt64(bitAnd(narrow_slots, 4294967295) != 0)
                + 2 * toUInt64(narrow_slots > 4294967295),
            bitAnd(2 * narrow, 63)),
        bitShiftLeft(toUInt64(1), bitAnd(bitShiftRight(narrow, 4), 63))) AS slots,
    toInt64(length(steps)) AS rows,
    arrayMax(times) AS time_ms
FROM
(
    SELECT
        experiment_id, kind, name, trial_id, narrow, narrow_slots, steps, values, times,
        arrayMin(steps) AS first,
        arrayMax(steps) AS last,
        arrayMin(arrayMap(value -> if(isFinite(value), value, inf), values)) AS lowest,
        arrayMax(arrayMap(value -> if(isFinite(value), value, -inf), values)) AS highest,
        arrayMin(arrayMap((step, value) -> if(value = lowest, step, last), steps, values))
            AS lowest_step,
        arrayMin(arrayMap((step, value) -> if(value = highest, step, last), steps, values))
            AS highest_step,
        arrayExists(value -> NOT isFinite(value), values) AS has_odd,
        arrayMin(arrayMap((step, value) -> if(isFinite(value), last, step), steps, values))
            AS odd_step
    FROM
    (
        SELECT
            experiment_id, kind, name, trial_id,
            bitShiftRight(toUInt64(step) + 9223372036854775808, 6) AS narrow,
            groupBitOr(bitShiftLeft(toUInt64(1), bitAnd(toUInt64(step), 63))) AS narrow_slots,
            groupArray(step) AS steps,
            groupArray(value) AS values,
            groupArray(time_ms) AS times
        FROM metrics
        GROUP BY experiment_id, kind, name, trial_id, narrow
    )
)
ARRAY JOIN [toUInt8(0), toUInt8(5), toUInt8(10)] AS level;

-- What the table should hold: of each stretch one row for every narrow one that lies in it.
CREATE VIEW IF NOT EXISTS counted_stretches AS
SELECT
    experiment_id, kind, name, level, trial_id,
    bitShiftRight(narrow, level) AS stretch,
    (first, values[indexOf(steps, first)], times[indexOf(steps, first)]) AS low,
    (last, values[indexOf(steps, last)], times[indexOf(steps, last)]) AS high,
    (lowest, if(isFinite(lowest), lowest_step, 0),
        if(isFinite(lowest), times[indexOf(steps, lowest_step)], 0)) AS least,
    (highest, if(isFinite(highest), bitNot(highest_step), 0),
        if(isFinite(highest), times[indexOf(steps, highest_step)], 0)) AS most,
    if(has_odd, (odd_step, values[indexOf(steps, odd_step)], times[indexOf(steps, odd_step)]),
        (toInt64(9223372036854775807), 0., toInt64(0))) AS odd,
    multiIf(
        level = 0, narrow_slots,
        level = 5, bitShiftLeft(
            toUInt64(bitAnd(narrow_slots, 4294967295) != 0)
                + 2 * toUInt64(narrow_slots > 4294967295),
            bitAnd(2 * narrow, 63)),
        bitShiftLeft(toUInt64(1), bitAnd(bitShiftRight(narrow, 4), 63))) AS slots,
    toInt64(length(steps)) AS rows,
    arrayMax(times) AS time_ms
FROM
(
    SELECT
        experiment_id, kind, name, trial_id, narrow, narrow_slots, steps, values, times,
        arrayMin(steps) AS first,
        arrayMax(steps) AS last,
        arrayMin(arrayMap(value -> if(isFinite(value), value, inf), values)) AS lowest,
        arrayMax(arrayMap(value -> if(isFinite(value), value, -inf), values)) AS highest,
        arrayMin(arrayMap((step, value) -> if(value = lowest, step, last), steps, values))
            AS lowest_step,
        arrayMin(arrayMap((step, value) -> if(value = highest, step, last), steps, values))
            AS highest_step,
        arrayExists(value -> NOT isFinite(value), values) AS has_odd,
        arrayMin(arrayMap((step, value) -> if(isFinite(value), last, step), steps, values))
            AS odd_step
    FROM
    (
        SELECT
            experiment_id, kind, name, trial_id,
            bitShiftRight(toUInt64(step) + 9223372036854775808, 6) AS narrow,
            groupBitOr(bitShiftLeft(toUInt64(1), bitAnd(toUInt64(step), 63))) AS narrow_slots,
            groupArray(step) AS steps,
            groupArray(value) AS values,
            groupArray(time_ms) AS times
        FROM metrics FINAL
        GROUP BY experiment_id, kind, name, trial_id, narrow
    )
)
ARRAY JOIN [toUInt8(0), toUInt8(5), toUInt8(10)] AS level;

-- As in 0008.
SELECT sleep(3) FROM (SELECT 1 FROM metrics LIMIT 1);

-- The reports that are there already. What comes in meanwhile, and all of it if this is interrupted
-- and begun again, is counted twice, until the service builds those stretches anew (`recount.sql`).
INSERT INTO stretches
    (experiment_id, kind, name, level, trial_id, stretch, low, high, least, most, odd, slots, rows,
     time_ms)
SELECT
    experiment_id, kind, name, level, trial_id, stretch, low, high, least, most, odd, slots, rows,
    time_ms
FROM counted_stretches
SETTINGS optimize_aggregation_in_order = 1, max_bytes_before_external_group_by = 200000000;
