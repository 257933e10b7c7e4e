"""Curves, best values and lines, from a real chDB folder."""

import asyncio
import math
from pathlib import Path

import pytest

from metrics.lines import all_lines, page
from metrics.report import EXPERIMENT, Level, line, logs, metrics, record, row
from rung.api import LogLine
from rung.events.metric import LogsDeleted, LogsDropped, MetricRow, MetricsDeleted
from rung.metrics import SeriesStore

pytestmark = pytest.mark.stores

TRIAL = f"{EXPERIMENT}.0"


async def test_a_report_is_visible_at_once(store: SeriesStore) -> None:
    """What was absorbed is answered without anybody having flushed."""
    store.absorb([record(metrics([row(1, loss=0.5)]), 0)])
    assert await store.curve(TRIAL, "training", "loss", 10) == [(1, 0.5, 1_001)]


async def test_values_come_back_bit_for_bit(store: SeriesStore) -> None:
    """Doubles keep every bit; those that are not finite stay what they are."""
    values = [0.1, 1e300, 5e-324, -2.5, 3.0, math.inf, -math.inf, math.nan, 1 / 3]
    store.absorb([record(metrics([row(i, loss=v) for i, v in enumerate(values)]), 0)])
    curve = await store.curve(TRIAL, "training", "loss", 100)
    assert [repr(value) for _, value, _ in curve] == [repr(value) for value in values]


async def test_the_newest_run_wins(store: SeriesStore) -> None:
    """A step reported by two runs has the later run's value, in whatever order they arrive."""
    store.absorb([record(metrics([row(1, loss=1.0), row(2, loss=1.0)], run=2), 0)])
    store.absorb([record(metrics([row(2, loss=9.0), row(3, loss=9.0)], run=1), 1)])
    curve = await store.curve(TRIAL, "training", "loss", 10)
    assert [(step, value) for step, value, _ in curve] == [(1, 1.0), (2, 1.0), (3, 9.0)]


async def test_the_last_report_of_a_step_wins_within_a_run(store: SeriesStore) -> None:
    """Within one event and across events, the value that was given last stays."""
    store.absorb([record(metrics([row(1, loss=1.0), row(1, loss=2.0)]), 0, sequence=1)])
    assert await store.curve(TRIAL, "training", "loss", 10) == [(1, 2.0, 1_001)]
    store.absorb([record(metrics([row(1, loss=3.0)]), 1, sequence=2)])
    assert await store.curve(TRIAL, "training", "loss", 10) == [(1, 3.0, 1_001)]


async def test_an_old_report_delivered_again_changes_nothing(store: SeriesStore) -> None:
    """An event that lies in the ledger again, behind a newer one, does not win over that."""
    store.absorb([record(metrics([row(1, loss=1.0)]), 0, sequence=1)])
    store.absorb([record(metrics([row(1, loss=2.0)]), 1, sequence=2)])
    store.absorb([record(metrics([row(1, loss=1.0)]), 2, sequence=1)])
    assert await store.curve(TRIAL, "training", "loss", 10) == [(1, 2.0, 1_001)]


async def test_overlay_has_every_trial(store: SeriesStore) -> None:
    """Each trial has its own curve, of that metric and that experiment alone."""
    store.absorb(
        [
            record(metrics([row(1, loss=1.0, accuracy=0.1)], trial=0), 0),
            record(metrics([row(1, loss=2.0), row(2, loss=1.5)], trial=11), 1),
            record(metrics([row(1, kind="validation", loss=7.0)], trial=2), 2),
        ]
    )
    assert await store.overlay(EXPERIMENT, "training", "loss", 10) == {
        f"{EXPERIMENT}.0": [(1, 1.0, 1_001)],
        f"{EXPERIMENT}.11": [(1, 2.0, 1_001), (2, 1.5, 1_002)],
    }
    assert await store.overlay("another", "training", "loss", 10) == {}


async def test_names_lists_what_was_reported(store: SeriesStore) -> None:
    """Kinds and names, sorted, each once."""
    store.absorb(
        [
            record(metrics([row(1, loss=1.0, accuracy=0.1), row(2, loss=1.0)]), 0),
            record(metrics([row(1, kind="validation", loss=7.0)], trial=2), 1),
        ]
    )
    assert await store.names(EXPERIMENT) == [
        ("training", "accuracy"),
        ("training", "loss"),
        ("validation", "loss"),
    ]


@pytest.mark.parametrize(("smaller", "expected"), [(True, (2, 0.5)), (False, (3, 4.0))])
async def test_best_is_the_earliest_of_the_best_finite_ones(
    store: SeriesStore, *, smaller: bool, expected: tuple[int, float]
) -> None:
    """NaN and infinities never win; of equal values the earliest step does."""
    values = [1.0, 0.5, 4.0, 0.5, 4.0, math.nan, math.inf, -math.inf]
    rows = [row(i, kind="validation", error=v) for i, v in enumerate(values, 1)]
    only_nan = [row(1, kind="validation", error=math.nan)]
    store.absorb([record(metrics(rows), 0), record(metrics(only_nan, trial=1), 1)])
    assert await store.best(EXPERIMENT, "error", smaller_is_better=smaller) == {TRIAL: expected}


async def test_unknown_things_are_empty(store: SeriesStore) -> None:
    """Asking for what was never reported is no error."""
    assert await store.curve("no.such", "training", "loss", 10) == []
    assert await store.curve("nonsense", "training", "'; DROP TABLE metrics; --", 10) == []
    assert await store.names("none") == []
    assert await store.best("none", "loss", smaller_is_better=True) == {}


async def test_odd_texts_come_back_as_they_were(store: SeriesStore) -> None:
    """Quotes, tabs, line ends, backslashes, NUL, braces and emoji are just text."""
    odd = "a'b\"c\\n\n\t\r\0{x:String} \\N NULL 🦊"
    store.absorb(
        [
            record(
                metrics([MetricRow(kind="training", step=1, time_ms=1_001, values={odd: 1.0})]), 0
            ),
            record(logs([line(odd, 5), line("", 6)]), 0),
        ]
    )
    assert await store.names(EXPERIMENT) == [("training", odd)]
    assert await store.curve(TRIAL, "training", odd, 10) == [(1, 1.0, 1_001)]
    found, _ = await page(store, text=odd)
    assert [entry.text for entry in found] == [odd]


async def test_lines_are_sorted_by_time_and_chosen_by_filters(store: SeriesStore) -> None:
    """Time, rank, level (that or more severe) and text choose lines; all together narrow."""
    store.absorb(
        [
            record(logs([line("Epoch ONE", 10), line("hm", 30, rank=1, level="warning")]), 0),
            record(logs([line("epoch two", 20, level="error"), line("dbg", 5, level="debug")]), 1),
            record(logs([line("other trial", 15)], trial=1), 2),
        ]
    )

    async def texts(**filters: object) -> list[str]:
        return [entry.text for entry in await all_lines(store, **filters)]

    assert await texts() == ["dbg", "Epoch ONE", "other trial", "epoch two", "hm"]
    assert await texts(trial_id=TRIAL) == ["dbg", "Epoch ONE", "epoch two", "hm"]
    assert await texts(rank=1) == ["hm"]
    assert await texts(level="warning") == ["epoch two", "hm"]
    assert await texts(level="info") == ["Epoch ONE", "other trial", "epoch two", "hm"]
    assert await texts(level="critical") == []
    assert await texts(level="warning", trial_id=TRIAL, rank=0) == ["epoch two"]
    assert await texts(text="ePOCH") == ["Epoch ONE", "epoch two"]
    assert await texts(since_ms=15, until_ms=30) == ["other trial", "epoch two"]
    assert await texts(text="epoch", level="error", since_ms=11) == ["epoch two"]
    (first, *_), _ = await page(store, rank=1)
    assert first == LogLine(
        trial_id=TRIAL,
        run=1,
        rank=1,
        stream="stdout",
        level="warning",
        time_ms=30,
        text="hm",
    )


async def test_pages_have_every_line_once(store: SeriesStore) -> None:
    """Following the cursors gives all lines in order, although many share one moment."""
    sent = [f"line {i}" for i in range(50)]
    for position in range(10):
        texts = sent[position * 5 : position * 5 + 5]
        store.absorb([record(logs([line(text, 7) for text in texts]), position)])
    got: list[str] = []
    after: str | None = None
    pages = 0
    while pages == 0 or after:
        found, after = await page(store, after=after, limit=7)
        got += [entry.text for entry in found]
        pages += 1
    assert got == sent
    assert pages == 8


async def test_pages_from_the_end(store: SeriesStore) -> None:
    """With `newest`, the last lines come first, and cursors lead back to the first line."""
    sent = [f"line {i}" for i in range(50)]
    for position in range(10):
        lines = [line(text, 7 + position // 3) for text in sent[position * 5 : position * 5 + 5]]
        store.absorb([record(logs(lines), position)])
    got: list[str] = []
    after: str | None = None
    while not got or after:
        found, after = await page(store, after=after, limit=7, order="newest")
        got += [entry.text for entry in found]
    assert got == sent[::-1]
    found, _ = await page(store, limit=2, order="newest", until_ms=8)
    assert [entry.text for entry in found] == ["line 14", "line 13"]


@pytest.mark.parametrize("experiment_id", [EXPERIMENT, None])
async def test_pages_of_severe_lines(store: SeriesStore, experiment_id: str | None) -> None:
    """Lines of several levels come sorted as if there were one, in pages, in both directions."""
    levels: list[Level] = ["info", "warning", "error", "critical", "debug"]
    for position in range(12):
        lines = []
        for number in range(5):
            level = levels[(position * 3 + number * number) % 5]
            lines.append(line(f"{level} {position}.{number}", position // 4, level=level))
        store.absorb([record(logs(lines, trial=position % 2), position)])
        if position % 3 == 0:
            await store.flush()
    everything = await all_lines(store)
    for level, chosen in (("warning", levels[1:4]), ("error", levels[2:4])):
        wanted = [entry.text for entry in everything if entry.level in chosen]
        assert len(wanted) > 10
        for order in ("oldest", "newest"):
            texts: list[str] = []
            after: str | None = None
            while not texts or after:
                found, after = await page(
                    store,
                    experiment_id=experiment_id,
                    level=level,
                    after=after,
                    limit=4,
                    order=order,
                )
                texts += [entry.text for entry in found]
            assert texts == (wanted if order == "oldest" else wanted[::-1])


async def test_text_is_no_pattern(store: SeriesStore) -> None:
    """What indexes are asked with stands for itself: wildcards and backslashes find themselves."""
    texts = ["100% of a_b", "100 of aXb", "C:\\Temp", "ÄRGER", "x"]
    store.absorb([record(logs([line(text, 7) for text in texts]), 0)])

    async def found(text: str) -> list[str]:
        return [entry.text for entry in await all_lines(store, text=text)]

    assert await found("0% O") == ["100% of a_b"]
    assert await found("A_b") == ["100% of a_b"]
    assert await found("c:\\t") == ["C:\\Temp"]
    assert await found("ärg") == ["ÄRGER"]
    assert await found("X") == ["100 of aXb", "x"]


async def test_indexes_hide_no_letter(store: SeriesStore) -> None:
    """Letters whose lower case is another, several ones or changes at the end of a word."""
    texts = [
        "ΛΌΓΟΣ λόγος τέλος",
        "\u017ftraße STRASSE STRAẞE",
        "300 \u212a, 5 \u212bngström, \u00b5m",
        "İstanbul ISPARTA \u0131lgaz",
        "\u01c5ep \u01c6ep \u01c4ep",
        "训练完成 ①②③ 損失=½",
        "ГОТОВО: слой Ёлка ԱՐԵՎ արեւ",
    ]
    store.absorb([record(logs([line(text, 7) for text in texts]), 0)])
    for text in texts:
        for size in (3, 4, 5, 9):
            for start in range(len(text) - size + 1):
                found = await all_lines(store, text=text[start : start + size])
                assert text in [entry.text for entry in found], text[start : start + size]


async def test_a_mark_stands_where_lines_are_missing(store: SeriesStore) -> None:
    """It is a line of its own kind, behind the line before it though both have one time."""
    missing = LogsDropped(
        experiment_id=EXPERIMENT,
        trial_id=TRIAL,
        run=1,
        rank=0,
        reason="quota",
        time_ms=7,
        lines=1_204,
        size_bytes=98_765,
    )
    store.absorb(
        [
            record(logs([line("before", 7)]), 0),
            record(missing, 1),
            record(logs([line("after", 7)]), 2),
        ]
    )
    found = await all_lines(store)
    assert [(entry.stream, entry.text) for entry in found] == [
        ("stdout", "before"),
        (
            "dropped",
            (
                "1,204 lines (98,765 bytes) dropped here: the run's log has reached its limit, "
                "logs.max_bytes"
            ),
        ),
        ("stdout", "after"),
    ]


async def test_deleted_lines_stay_deleted(store: SeriesStore) -> None:
    """Those of a trial before a time; delivered again in their order, they are deleted again."""

    def deleted(trial: int, before_ms: int) -> LogsDeleted:
        return LogsDeleted(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.{trial}",
            before_ms=before_ms,
            lines=1,
            size_bytes=3,
        )

    records = [
        record(logs([line("old", 5, level="error"), line("new", 20, level="error")]), 0),
        record(logs([line("other", 5)], trial=1), 1),
        record(deleted(0, 10), 2),
        record(logs([line("newer", 30)]), 3),
    ]

    async def texts() -> list[str]:
        async with asyncio.timeout(30):
            while True:  # a server before 23.8 deletes in the background
                found = [entry.text for entry in await all_lines(store)]
                severe = [entry.text for entry in await all_lines(store, level="warning")]
                if "old" not in found + severe:
                    assert severe == [
                        text for text in found if not text.startswith(("oth", "newer"))
                    ]
                    return found
                await asyncio.sleep(0.05)

    mark = "1 line (3 bytes) deleted before this, by `rung gc logs` or the quota of all logs"
    store.absorb(records)
    assert await texts() == ["other", mark, "new", "newer"]
    assert await store.deletions() == {TRIAL: 10}
    store.absorb(records)
    await store.flush()
    assert await texts() == ["other", mark, "new", "newer"]
    sizes = await store.log_sizes(EXPERIMENT, 25)
    assert [(each.trial_id, each.lines, each.size_bytes) for each in sizes] == [
        (TRIAL, 1, 3),
        (f"{EXPERIMENT}.1", 1, 5),
    ]


async def test_a_deleted_experiment_leaves_nothing(store: SeriesStore) -> None:
    """Its metrics and lines go, without a mark; those of other trials stay."""
    always = 2**53 - 1
    gone = LogsDeleted(
        experiment_id=EXPERIMENT, trial_id=TRIAL, before_ms=always, lines=0, size_bytes=0
    )
    records = [
        record(metrics([row(1, loss=0.5)]), 0),
        record(metrics([row(1, loss=0.25)], trial=1), 1),
        record(logs([line("mine", 5, level="error")]), 0),
        record(logs([line("other", 5)], trial=1), 1),
        record(MetricsDeleted(experiment_id=EXPERIMENT, trial_id=TRIAL), 2),
        record(gone, 2),
    ]

    async def left() -> tuple[list[str], list[str]]:
        curves = await store.overlay(EXPERIMENT, "training", "loss", 10)
        return sorted(curves), [entry.text for entry in await all_lines(store)]

    wanted = ([f"{EXPERIMENT}.1"], ["other"])
    for _ in range(2):
        store.absorb(records)
        await store.flush()
        async with asyncio.timeout(30):
            while True:  # a server before 23.8 deletes in the background
                if await left() == wanted:
                    break
                await asyncio.sleep(0.05)


async def test_a_page_of_long_lines_ends_early(store: SeriesStore) -> None:
    """However many lines are asked for, a page has some 8 MiB; the cursor leads to the rest."""
    for position in range(12):
        lines = [line(f"{position} {'x' * 65_000}", position) for _ in range(100)]
        store.absorb([record(logs(lines), position)])
    await store.flush()
    pages: list[int] = []
    after: str | None = None
    while not pages or after:
        found, after = await page(store, after=after, limit=1_100)
        pages.append(len(found))
    assert sum(pages) == 1_200
    assert len(pages) >= 2
    assert max(pages) <= 1_000


async def test_a_line_delivered_again_is_one_line(store: SeriesStore) -> None:
    """The same event at another position gives no second line; equal texts stay two lines."""
    printed = logs([line("same", 7), line("same", 7)])
    store.absorb([record(printed, 0, sequence=3), record(printed, 1, sequence=3)])
    store.absorb([record(printed, 0, sequence=3)])
    found = await all_lines(store)
    assert [entry.text for entry in found] == ["same", "same"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"level": "loud"}, "level is 'loud': give one of debug, info"),
        ({"after": "ü"}, "after is 'ü': give the cursor"),
        ({"after": "nonsense"}, "after is 'nonsense': give the cursor"),
        ({"limit": 0}, "limit is 0: give a number from 1"),
    ],
)
async def test_bad_requests_name_field_and_fix(
    store: SeriesStore, asked: dict[str, object], message: str
) -> None:
    """A level, cursor or limit that is none is refused with what would be right."""
    with pytest.raises(ValueError, match=message):
        await page(store, **asked)
    with pytest.raises(ValueError, match="points is 0"):
        await store.curve(TRIAL, "training", "loss", 0)


async def test_a_store_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    """Rows and positions survive closing, also those that nobody had flushed."""
    first = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    assert await first.positions() == {}
    first.absorb([record(metrics([row(1, loss=1.0)]), 4, partition=2), record(logs([]), 8)])
    await first.close()
    second = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    assert await second.positions() == {("metrics", 2): 5, ("logs", 0): 9}
    assert await second.curve(TRIAL, "training", "loss", 10) == [(1, 1.0, 1_001)]
    await second.close()
