"""Pages of printed lines read what lies near them, however many lines there are."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from metrics.lines import page
from metrics.reads import Reads
from metrics.report import EXPERIMENT
from rung.metrics import SeriesStore
from rung.metrics.queries import LineKey, write_cursor

pytestmark = pytest.mark.stores

_LINES = 400_000
_PAGE = 500
_GRANULE = 8_192
_FILL = """
INSERT INTO logs
    (experiment_id, time_ms, trial_id, sequence, line, origin, run, rank, stream, level, text)
SELECT '{name}', intDiv(number, 10), concat('{name}.', toString(number % 4)),
    intDiv(number, 1000), number % 1000, 'agent/a/spool', 1, 0, 'stdout',
    multiIf(number % 40000 = 7, 'error', number % 50 = 3, 'warning', 'info'),
    multiIf(number = 123456, 'the Needle', number = 234567, 'eine Größe von Øl',
        number = 345678, 'порядок слоёв', number = 356789, '训练完成',
        concat('saved ', lower(hex(MD5(toString(number)))), ', loss ',
            toString(cityHash64(number)), ', step ', toString(number)))
FROM numbers({lines})
"""
_MIDDLE = write_cursor(
    LineKey(_LINES // 20, f"{EXPERIMENT}.0", _LINES // 2_000, 1, "agent/a/spool")
)


async def test_a_page_reads_a_few_granules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it lies, of whatever lines; a text is looked for where it may be."""
    reads = Reads(monkeypatch)
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await store._run(lambda tables: tables.execute(_FILL.format(name=EXPERIMENT, lines=_LINES)))
    await store._run(lambda tables: tables.execute("OPTIMIZE TABLE logs FINAL"))
    # The engine remembers which granules a condition chose: here each page is to be the first.
    await store._run(lambda tables: tables.execute("SET use_query_condition_cache = 0"))
    trial = f"{EXPERIMENT}.3"
    digest = hashlib.md5(b"299999", usedforsecurity=False).hexdigest()[:20]
    asked: dict[str, Any]
    for found, asked in (
        (_PAGE, {}),
        (_PAGE, {"order": "newest"}),
        (_PAGE, {"after": _MIDDLE}),
        (_PAGE, {"after": _MIDDLE, "order": "newest"}),
        (_PAGE, {"since_ms": _LINES // 20}),
        (_PAGE, {"trial_id": trial, "experiment_id": None}),
        (_PAGE, {"trial_id": trial, "experiment_id": None, "after": _MIDDLE}),
        (_PAGE, {"trial_id": trial, "order": "newest"}),
        (10, {"level": "error"}),
        (_PAGE, {"level": "warning"}),
        (_PAGE, {"level": "warning", "after": _MIDDLE}),
        (_PAGE, {"level": "warning", "order": "newest"}),
        (1, {"text": "needle"}),
        (0, {"text": "no such"}),
        (1, {"text": digest}),
        (1, {"text": "STEP 298765"}),
        (1, {"text": "größe"}),
        (1, {"text": "ПОРЯДОК"}),
        (1, {"text": "训练完"}),
    ):
        limit = {"limit": _PAGE}
        rows, (lines, _) = await reads.of(store, page(store, **limit | asked))
        assert len(lines) == found, asked
        assert rows <= 8 * _GRANULE < _LINES // 6, (asked, rows)
    await store.close()
