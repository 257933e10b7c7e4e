"""What must hold of a cluster after any storm, read from its ledger, its ClickHouse and its S3."""

import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from rung.cli.operations.components import audit_all
from rung.events import Event, decode, topic
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.metric import MetricsReported
from rung.events.trial import RunRequested, TrialExited
from rung.ledger import Ledger, Record
from rung.storage import ObjectMissing, ObjectStore, load_checkpoint
from servers.clickhouse import DATABASE, ClickHouse
from support.user import User, wait_for

Row = tuple[str, str, str, int]
"""Trial, kind, name and step of a report."""
TRAINING: Final = ("training", "noise")
VALIDATION: Final = ("validation", "loss")


async def records(ledger: Ledger, name: str) -> AsyncIterator[Record]:
    """Yield all records of a topic, each partition in its order."""
    for partition in range(ledger.partitions(name)):
        position = 0
        while found := await ledger.read(name, partition, position, 2_000):
            position = found[-1].position + 1
            for record in found:
                yield record


async def no_difference(ledger: Ledger) -> None:
    """Every decision on record is the one that is decided today."""
    audit = await audit_all(ledger)
    assert audit.same, audit


async def reports_are_stored_once(ledger: Ledger, clickhouse: ClickHouse) -> int:
    """Every report in the ledger is one row in ClickHouse, of the newest run; return how many."""
    expected: dict[Row, tuple[int, int, float]] = {}
    async for record in records(ledger, topic.METRICS):
        event = decode(record.value)
        if isinstance(event.data, MetricsReported):
            for row, version in _rows(event, event.data, record.position):
                expected[row] = max(version, expected.get(row, version))
    await asyncio.to_thread(
        wait_for,
        lambda: _stored(clickhouse).keys() >= expected.keys(),
        "ClickHouse has every report of the ledger",
    )
    stored = _stored(clickhouse)
    assert stored == {row: value for row, (_, _, value) in expected.items()}
    return len(stored)


def _stored(clickhouse: ClickHouse) -> dict[Row, float]:
    columns = "trial_id, kind, name, step, value"
    table = f"{DATABASE}.metrics"
    answer = clickhouse.query(f"SELECT {columns} FROM {table} FINAL FORMAT JSONCompact")  # noqa: S608 - constants
    stored: dict[Row, float] = {}
    for trial, kind, name, step, value in json.loads(answer)["data"]:
        row = (trial, kind, name, int(step))
        assert row not in stored, f"twice: {row}"
        stored[row] = float(value)
    return stored


def _rows(
    event: Event, data: MetricsReported, position: int
) -> Iterator[tuple[Row, tuple[int, int, float]]]:
    sequence = position if event.sequence is None else event.sequence
    for reported in data.rows:
        for name, value in reported.values.items():
            row = (data.trial_id, reported.kind, name, reported.step)
            yield row, (data.run, sequence, float(value))


async def runs_do_not_overlap(ledger: Ledger) -> int:
    """A trial's next run was requested only after the end of the one before; return how many."""
    ends: dict[tuple[str, int], int] = {}
    async for record in records(ledger, topic.EXPERIMENTS):
        data = decode(record.value).data
        if isinstance(data, TrialExited | AllocationLost | AllocationDropped):
            ends.setdefault((data.trial_id, data.run), record.position)
    newest: dict[str, int] = {}
    async for record in records(ledger, topic.SEARCHES):
        event = decode(record.value)
        if isinstance(event.data, RunRequested):
            trial, run = event.data.spec.trial_id, event.data.spec.run
            if run == newest.get(trial):
                continue  # doubled by a replica that woke late: every reader drops it
            assert run == newest.get(trial, 0) + 1, (trial, run)
            assert event.causeposition is not None
            assert run == 1 or ends[trial, run - 1] <= event.causeposition, (trial, run)
            newest[trial] = run
    return sum(newest.values())


def curves_are_whole(user: User, experiment: str) -> None:
    """Each trial's curve has every step once, with the value of a run that nothing disturbed."""
    shown = user.get(f"/experiments/{experiment}")
    assert shown["state"] == "completed", shown["reason"]
    for trial in shown["trials"]:
        steps = [validation["steps"] for validation in trial["validations"]]
        assert steps == list(range(1, len(steps) + 1)), (trial["id"], steps)
        losses = [validation["metrics"]["loss"] for validation in trial["validations"]]
        assert losses == [loss for _, loss in _undisturbed(trial, len(steps))], trial["id"]


def _undisturbed(trial: dict[str, Any], steps: int) -> Iterator[tuple[float, float]]:
    """Yield noise and loss as the curve of `tests/support/curve` reports them, step by step."""
    state, hparams = str(trial["seed"]), json.dumps(trial["hparams"], sort_keys=True)
    for step in range(1, steps + 1):
        state = hashlib.sha256((state + hparams).encode()).hexdigest()
        noise = int(state[:8], 16) / 2**32
        yield noise, float(trial["hparams"]["limit"]) + (1 + noise) / step


def nothing_reported_is_missing(user: User, clickhouse: ClickHouse, experiment: str) -> int:
    """ClickHouse has what the scripts of the trials said, step by step; return how many rows.

    What that is follows from the script and from how far each trial came, not from the ledger: a
    report that a broker acknowledged and lost is missing here.
    """
    trials = user.get(f"/experiments/{experiment}")["trials"]
    due = {row for trial in trials for row in _said(trial, len(trial["validations"]))}
    wait_for(
        lambda: _stored(clickhouse).keys() >= due,
        f"ClickHouse has every step that the trials of {experiment} came to",
    )
    stored = _stored(clickhouse)
    for trial in trials:
        assert_as_said(trial, stored)
    return len(due)


def assert_as_said(trial: dict[str, Any], stored: dict[Row, float]) -> None:
    """The rows of a trial's script are the first that it says, none left out and none changed.

    Its last run may have come further than what counts, and have ended between the two reports
    of a step. What the agent measures besides is not the script's.
    """
    found = {
        row: value
        for row, value in stored.items()
        if row[0] == trial["id"] and row[1:3] in {TRAINING, VALIDATION}
    }
    reached = len(trial["validations"])
    last = max((step for *_, step in found), default=reached)
    said = _said(trial, max(last, reached))
    if last > reached and (trial["id"], *VALIDATION, last) not in found:
        del said[trial["id"], *VALIDATION, last]
    assert found == said, trial["id"]


def _said(trial: dict[str, Any], steps: int) -> dict[Row, float]:
    said: dict[Row, float] = {}
    for step, (noise, loss) in enumerate(_undisturbed(trial, steps), 1):
        said[trial["id"], *TRAINING, step] = noise
        said[trial["id"], *VALIDATION, step] = loss
    return said


def kept_checkpoints_are_whole(user: User, store: ObjectStore, experiment: str) -> int:
    """What retention kept can be loaded, digests and all; return how many checkpoints."""
    listed = user.get(f"/experiments/{experiment}/checkpoints?limit=1000")["items"]
    kept = [checkpoint for checkpoint in listed if checkpoint["state"] == "stored"]
    best = user.get(f"/experiments/{experiment}/best")["checkpoint"]["id"]
    assert best in {checkpoint["id"] for checkpoint in kept}
    for checkpoint in kept:
        with tempfile.TemporaryDirectory() as folder:
            try:
                load_checkpoint(store, experiment, checkpoint["id"], Path(folder) / "checkpoint")
            except ObjectMissing:
                _wait_until_retired(user, checkpoint["id"])
    return len(kept)


def _wait_until_retired(user: User, checkpoint_id: str) -> None:
    """Wait until a checkpoint that is gone is told to be: it was deleted meanwhile."""
    wait_for(
        lambda: user.get(f"/checkpoints/{checkpoint_id}")["state"] in {"retired", "deleted"},
        f"{checkpoint_id} is not there, and was retired",
    )
