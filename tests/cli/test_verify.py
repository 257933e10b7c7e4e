"""`rung verify`, and what `rung audit` and `rung ledger import` make of it."""

import asyncio
import json
import re
import sqlite3
from pathlib import Path

import pytest
from blake3 import blake3

from cli.conftest import Rung
from rung.ledger import SqliteLedger
from rung.ledger.export.export import import_
from rung.ledger.seals import FILE, SealKey
from support.ledger.history import exported, simulated
from support.ledger.sealed import example, seal


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Give a data folder with the sealed ledger of a search."""

    async def make() -> None:
        ledger = await SqliteLedger.open(tmp_path / "data" / "ledger")
        await import_(ledger, (await exported(await simulated())).splitlines())
        await seal(ledger, SealKey.load_or_create(tmp_path / "data" / FILE))
        await ledger.close()

    (tmp_path / "data").mkdir()
    asyncio.run(make())
    return tmp_path / "data"


def improve(data: Path) -> None:
    """Alter a metric in the ledger's file, as nobody should."""
    database = sqlite3.connect(data / "ledger" / "ledger.db")
    changed = database.execute(
        "UPDATE records SET value = CAST(replace(CAST(value AS TEXT), '\"loss\":0.5}',"
        " '\"loss\":0.1}') AS BLOB)"
        " WHERE CAST(value AS TEXT) LIKE '%\"loss\":0.5}%'"
    ).rowcount
    database.commit()
    database.close()
    assert changed == 1


def test_a_ledger_as_it_was_sealed(data: Path, rung: Rung) -> None:
    """Exit code 0, with how much was verified; the audit says so, too."""
    result = rung("verify", "--data", str(data))
    assert result.code == 0
    assert "records are as they were sealed" in result.out
    answer = rung("audit", "--data", str(data), "--json")
    assert answer.code == 0
    assert answer.json["seals"]["compared"]


def test_a_better_metric(data: Path, tmp_path: Path, rung: Rung) -> None:
    """A metric altered in the file is named, and fails the audit, though no decision differs."""
    improve(data)
    for command in (["verify"], ["audit"]):
        result = rung(*command, "--data", str(data))
        assert result.code == 1
        assert "is not the record that was sealed: it was altered" in result.out
    assert rung("audit", "--data", str(data), "--json").json["differences"] == []


def test_exports_and_archives_carry_seals(data: Path, tmp_path: Path, rung: Rung) -> None:
    """They verify by themselves and by the key, not by another one; altered ones are refused."""
    export, altered = tmp_path / "x.jsonl", tmp_path / "y.jsonl"
    archive = (tmp_path / "archive").as_uri()
    (tmp_path / "archive").mkdir()
    assert rung("ledger", "export", "--data", str(data), "-o", str(export)).code == 0
    assert rung("ledger", "archive", "--data", str(data), "--to", archive).code == 0
    key, other = SealKey.load(data / FILE).public, SealKey.generate().public
    for source in (str(export), archive):
        assert "compare it with --key" in rung("verify", "--ledger", source).out
        assert rung("verify", "--ledger", source, "--key", key).code == 0
        assert rung("verify", "--ledger", source, "--key", other).code == 1
    assert rung("audit", "--ledger", str(export), "--key", key).code == 0
    assert rung("audit", "--from-archive", archive, "--key", key).code == 0
    altered.write_bytes(export.read_bytes().replace(b'"loss":0.5}', b'"loss":0.1}'))
    assert rung("verify", "--ledger", str(altered)).code == 1
    assert rung("audit", "--ledger", str(altered)).code == 1
    refused = rung("ledger", "import", str(altered), "--data", str(tmp_path / "new"))
    assert refused.code != 0
    assert "is not imported, for it was altered or damaged" in refused.err
    improve(data)
    refused = rung("ledger", "archive", "--data", str(data), "--to", archive)
    assert refused.code != 0
    assert "one of them was altered" in refused.err


def test_records_that_nothing_covers(data: Path, tmp_path: Path, rung: Rung) -> None:
    """In a copy they are a failure, for an import, too; in a ledger they are the newest ones."""
    forged = tmp_path / "forged.jsonl"
    assert rung("ledger", "export", "--data", str(data), "-o", str(forged)).code == 0
    lines = [json.loads(line) for line in forged.read_bytes().splitlines()]
    added = next(line for line in lines if line.get("topic") == "experiments")
    added |= {"position": 999}
    lines[0]["records"] += 1
    encoded = [json.dumps(line).encode() + b"\n" for line in [*lines[:-1], added]]
    end = {"lines": len(encoded), "digest": blake3(b"".join(encoded)).hexdigest()}
    end |= {"key": None, "signature": None}
    forged.write_bytes(b"".join(encoded) + json.dumps(lines[-1] | end).encode() + b"\n")

    key, new = SealKey.load(data / FILE).public, str(tmp_path / "new")
    for trusted in ((), ("--key", key)):
        assert rung("verify", "--ledger", str(forged), *trusted).code == 1
        assert rung("audit", "--ledger", str(forged), *trusted).code == 1
        assert rung("ledger", "import", str(forged), *trusted, "--data", new).code != 0
    assert not Path(new).exists()

    async def append() -> None:
        ledger = await SqliteLedger.open(data / "ledger")
        await ledger.append([example("rung.trial.closed.v1")])
        await ledger.close()

    asyncio.run(append())
    result = rung("verify", "--data", str(data))
    assert result.code == 0
    assert re.search(
        r"not sealed yet: 1 record\n  searches/\d+: 1 from position \d+ on", result.out
    )
    assert rung("verify", "--data", str(data), "--strict").code == 1


def test_an_anchor_that_holds_nothing(data: Path, tmp_path: Path, rung: Rung) -> None:
    """An empty file proves nothing, and is not taken for a proof."""
    (tmp_path / "anchor").touch()
    result = rung("verify", "--data", str(data), "--anchor", str(tmp_path / "anchor"))
    assert result.code != 0
    assert "holds no signed heads" in result.err


def test_an_old_ledger_says_so(data: Path, rung: Rung) -> None:
    """Without seals and without a key nothing is wrong, and nothing is claimed: no success."""
    (data / FILE).unlink()
    database = sqlite3.connect(data / "ledger" / "ledger.db")
    (number,) = database.execute("SELECT number FROM topics WHERE name = 'seals'").fetchone()
    database.execute(
        "DELETE FROM records WHERE id >= ? AND id < ?", (number << 50, number + 1 << 50)
    )
    database.execute("DELETE FROM snapshots")
    database.commit()
    database.close()
    result = rung("verify", "--data", str(data))
    assert result.code == 6
    assert "There are no seals" in result.out
    assert rung("verify", "--data", str(data), "--json").json["sealed"] is False
