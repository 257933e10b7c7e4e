"""`rung ledger import` into a data folder, killed by SIGKILL at any moment."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from cli.conftest import Rung
from rung.events import TOPICS
from rung.ledger import SqliteLedger
from support.ledger.history import exported, simulated

pytestmark = pytest.mark.e2e

KILLER: Final = Path(__file__).with_name("import_killer.py")
ROOTS: Final = os.pathsep.join(path for path in sys.path if path)
BESIDE: Final = "imports"
"""The topic that tells of the import itself."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give the export of a search."""

    async def write() -> bytes:
        return await exported(await simulated())

    path = tmp_path / "export.jsonl"
    path.write_bytes(asyncio.run(write()))
    return path


def kill_at(file: Path, folder: Path, points: list[int]) -> list[dict[str, Any]]:
    """Import with a kill at each point; return what became of it."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(KILLER), str(file), str(folder), *map(str, points)]
    done = subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": ROOTS}
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def contents(data: Path) -> dict[str, Any]:
    """Return what a ledger holds, and where its consumers are."""

    async def read() -> dict[str, Any]:
        ledger = await SqliteLedger.open(data / "ledger")
        found: dict[str, Any] = {
            f"{name}/{part}": [
                (record.key, record.value)
                for record in await ledger.read(name, part, 0, 1_000_000)
            ]
            for name in TOPICS
            for part in range(ledger.partitions(name))
        }
        found["intake"] = await ledger.position("scheduler-intake", "searches", 0)
        await ledger.close()
        return {name: value for name, value in found.items() if value and BESIDE not in name}

    return asyncio.run(read())


def checkpoints_of(file: Path) -> int:
    """Return how many checkpoints an export has stored and not retired, the files of none."""
    left: dict[str, set[str]] = {"stored": set(), "retired": set(), "deleted": set()}
    for line in file.read_text().splitlines():
        event = json.loads(line).get("event") or {}
        kind, _, what = event.get("type", "").removeprefix("rung.").partition(".")
        if kind == "checkpoint" and (what := what.removesuffix(".v1")) in left:
            left[what].add(event["data"]["checkpoint_id"])
    assert left["stored"]
    return len(left["stored"] - left["retired"] - left["deleted"])


def check(data: Path, file: Path, whole: dict[str, Any], rung: Rung) -> bool:
    """Hold that a killed import left nothing or all; return which, and import again."""
    found = contents(data)
    assert found in ({}, whole), {name: len(value) for name, value in found.items()}
    again = rung("ledger", "import", str(file), "--data", str(data))
    if found:
        assert "this export is in this ledger already, complete" in again.err
    else:
        assert again.code == 0
        seals, objects = again.err.splitlines()
        assert "has no seals" in seals
        assert objects.startswith(f"Warning: {checkpoints_of(file)} checkpoints that")
    assert contents(data) == whole
    return bool(found)


def test_killed_before_any_statement(file: Path, tmp_path: Path, rung: Rung) -> None:
    """The ledger is as before or complete; importing again completes it or says that it is."""
    (undisturbed,) = kill_at(file, tmp_path / "import", [0])
    assert (undisturbed["killed"], undisturbed["code"]) == (False, 0)
    count = undisturbed["statements"]
    whole = contents(tmp_path / "import" / "0")
    assert check(tmp_path / "import" / "0", file, whole, rung)
    points = sorted({*range(1, count, count // 10), *range(count - 4, count + 1)})
    for outcome in kill_at(file, tmp_path / "import", points):
        assert outcome["killed"], outcome
        data = tmp_path / "import" / str(outcome["point"])
        assert not check(data, file, whole, rung), "the commit is the last statement"
    assert rung("audit", "--data", str(data)).code == 0


def test_killed_at_random_moments(file: Path, tmp_path: Path, rung: Rung) -> None:
    """The same at moments between statements, such as in the middle of a commit."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - to repeat what failed
    chance = random.Random(seed)  # noqa: S311 - a test's
    assert rung("ledger", "import", str(file), "--data", str(tmp_path / "whole")).code == 0
    whole = contents(tmp_path / "whole")
    for number in range(4):
        data = tmp_path / f"random-{number}"
        command = [sys.executable, "-m", "rung.cli", "ledger", "import", str(file)]
        process = subprocess.Popen(
            [*command, "--data", str(data)],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": ROOTS},
        )
        made = data / "ledger" / "ledger.db"
        while not made.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        check(data, file, whole, rung)
