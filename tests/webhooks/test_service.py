"""The service as a whole: what is subscribed to is delivered, whatever receivers do."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from msgspec import structs
from standardwebhooks import Webhook

from rung.events import changes, fact
from rung.events.experiment import ExperimentEnded, ExperimentMoved, ExperimentSubmitted
from rung.events.metric import LogLine, LogsPrinted
from rung.events.trial import LogMatched, TrialClosed, TrialValidated
from rung.events.webhook import RedeliveryRequested
from rung.ledger import Ledger
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.subscription.document import Threshold
from rung.webhooks.directory import Places
from webhooks.installation import KEY, SETTINGS, Installation, serving
from webhooks.receiver import Got, receiving

pytestmark = pytest.mark.processes


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    """Give a ledger."""
    opened = await SqliteLedger.open(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
def installation(ledger: Ledger, tmp_path: Path) -> Installation:
    """Give an installation on it."""
    return Installation(ledger, tmp_path / "objects")


def ended(name: str, reason: str = "") -> ExperimentEnded:
    """Return the end of an experiment."""
    return ExperimentEnded(experiment_id=name, state="completed", reason=reason)


def closed(name: str, index: int) -> TrialClosed:
    """Return the end of a trial."""
    trial_id = f"{name}.{index}"
    return TrialClosed(
        experiment_id=name, trial_id=trial_id, state="completed", reason="", restarts=0
    )


def subjects(got: list[Got]) -> list[str]:
    """Return what posts are about."""
    return [each.event["subject"] for each in got]


async def test_an_event_is_delivered_and_signed(
    installation: Installation,
) -> None:
    """As a CloudEvent, with the headers of the Standard Webhooks specification."""
    async with receiving() as receiver, serving(installation):
        await installation.submit("e1", "e2")
        await installation.hook("w1", receiver.url, experiment_id="e1")
        await installation.tell(ended("e2"), ended("e1", "17 of 17"))
        await installation.until_recorded(1, "delivered")

    (got,) = receiver.got
    event = Webhook(KEY).verify(got.body, got.headers)
    assert event["specversion"] == "1.0"
    assert (event["type"], event["subject"]) == ("rung.experiment.ended.v1", "e1")
    assert event["data"]["reason"] == "17 of 17"
    assert event["data"]["experiment_name"] == "the e1"
    assert event["id"] == got.headers["webhook-id"]
    assert got.headers["content-type"].startswith("application/cloudevents+json")
    assert not {"authorization", "cookie", "traceparent"} & set(got.headers)


async def test_what_was_before_is_not_told(installation: Installation) -> None:
    """A new webhook, a removed one and one that is off get nothing of the past."""
    await installation.submit("e1", "e2")
    await installation.tell(ended("e1"))
    async with receiving() as receiver:
        await installation.hook("w1", receiver.url)
        await installation.hook("w2", receiver.url)
        await installation.hook("w3", receiver.url, active=False)
        await installation.unhook("w2")
        async with serving(installation):
            await installation.tell(ended("e2"))
            await installation.until_recorded(1, "delivered")
    assert subjects(receiver.got) == ["e2"]


async def test_failures_are_tried_again_in_order_and_under_one_id(
    installation: Installation,
) -> None:
    """Of each experiment the next event waits; 500, 429 with Retry-After and redirects alike."""
    left = [500, 429, 302, 503, 500, 500]

    async def answer(_request: web.Request) -> web.Response:
        status = left.pop(0) if left else 200
        headers = {"Location": "http://127.0.0.1:1/", "Retry-After": "0.1"}
        return web.Response(status=status, headers=headers)

    async with receiving() as receiver, serving(installation):
        receiver.answer = answer
        await installation.submit("e1", "e2")
        await installation.hook("w1", receiver.url, events=["rung.trial.closed.v1"])
        await installation.tell(*(closed(name, i) for i in range(5) for name in ("e1", "e2")))
        found = await installation.until_recorded(10, "delivered")
    assert len({it.delivery_id for it in found}) == 10
    attempts = await installation.attempts()
    assert len([it for it in attempts if it.outcome == "failed"]) == 6
    assert {it.status for it in attempts} >= {500, 429, 302, 503, 200}
    for name in ("e1", "e2"):
        told = list(dict.fromkeys(s for s in subjects(receiver.got) if s.startswith(name)))
        assert told == [f"{name}.{i}" for i in range(5)]
    ids = {each.event["subject"]: set[str]() for each in receiver.got}
    for each in receiver.got:
        ids[each.event["subject"]].add(each.headers["webhook-id"])
    assert all(len(found) == 1 for found in ids.values())


async def test_a_bad_receiver_holds_up_nobody(installation: Installation) -> None:
    """One that hangs, one that sends for ever, one that is not there: another gets all at once."""
    hang = asyncio.Event()

    async def hanging(_request: web.Request) -> web.Response:
        await hang.wait()
        return web.Response()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=500)
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)

    async with (
        receiving() as bad,
        receiving() as worse,
        receiving() as good,
        serving(installation),
    ):
        bad.answer, worse.answer = hanging, endless
        await installation.submit(*(f"e{i}" for i in range(20)))
        for name, url in (
            ("w1", bad.url),
            ("w2", worse.url),
            ("w3", "http://127.0.0.1:1025/"),
            ("w4", good.url),
        ):
            await installation.hook(name, url)
        begun = time.monotonic()
        await installation.tell(*(ended(f"e{i}") for i in range(20)))
        await good.until(lambda got: len(got) == 20)
        assert time.monotonic() - begun < 20
        await bad.until(lambda got: len(got) >= 1)
        assert len(bad.got) <= 8
        bad.answer = worse.answer = None
        hang.set()
        await bad.until(lambda got: len({each.event["subject"] for each in got}) == 20)
        await worse.until(lambda got: len({each.event["subject"] for each in got}) == 20)


async def test_a_project_takes_its_experiments_along(installation: Installation) -> None:
    """To another workspace; its own webhook is of the one before, and is switched off."""
    async with receiving() as receiver, serving(installation):
        await installation.submit("e1")
        await installation.hook("w1", receiver.url)
        await installation.hook("w2", receiver.url, project_id="default")
        await installation.tell(ended("e1"))
        await installation.until_recorded(2, "delivered")
        await installation.hook("w3", f"{receiver.url}/speech", workspace_id="speech")
        move = changes.MoveProject(project_id="default", workspace_id="speech")
        await installation.change(move)
        await installation.tell(ended("e1"))
        await installation.until_recorded(3, "delivered")
    assert [got.path for got in receiver.got] == ["/hook", "/hook", "/hook/speech"]


def test_an_experiment_is_where_it_was_moved_to() -> None:
    """As the service folds it, from which it tells who is to be told."""
    places, db = Places(), sqlite3.connect(":memory:")
    db.execute(Places.schema)
    submitted = ExperimentSubmitted(
        experiment_id="e1",
        config={"name": "digits"},
        source="",
        code_digest=None,
        workspace_id="vision",
        project_id="p1",
    )
    moved = ExperimentMoved(experiment_id="e1", workspace_id="speech", project_id="p2")
    for data in (submitted, moved):
        event = fact(data, source="/t", origin="t", sequence=1, time="2026-01-01T00:00:00.000Z")
        places.evolve(db, "e1", event)
    assert db.execute("SELECT * FROM places").fetchall() == [("e1", "speech", "p2", "digits")]


async def test_what_is_asked_for_again_is_delivered_again(installation: Installation) -> None:
    """Under its id; what waits for its next attempt is tried at once."""
    slow = structs.replace(SETTINGS, retry_s=3600.0, retry_max_s=3600.0)
    event = {"id": "dlv_1", "type": "rung.webhook.test.v1", "subject": "w1", "data": {}}

    async def failing(_request: web.Request) -> web.Response:
        return web.Response(status=500)

    def again() -> RedeliveryRequested:
        return RedeliveryRequested(
            webhook_id="w1", delivery_id="dlv_1", experiment_id="", event=event
        )

    async with receiving() as receiver, serving(installation, slow):
        await installation.hook("w1", receiver.url)
        receiver.answer = failing
        await installation.tell(again())
        await installation.until_recorded(1, "failed")
        receiver.answer = None
        await installation.tell(again())
        await installation.until_recorded(1, "delivered")
        await installation.tell(again())
        await installation.until_recorded(2, "delivered")
    assert [got.headers["webhook-id"] for got in receiver.got] == ["dlv_1"] * 3


async def test_410_ends_a_webhook_until_it_is_set_again(
    installation: Installation,
) -> None:
    """What waits is dropped; set again, it gets what comes from then on."""

    async def gone(_request: web.Request) -> web.Response:
        return web.Response(status=410)

    async with receiving() as receiver, serving(installation):
        receiver.answer = gone
        await installation.submit("e1", "e2", "e3")
        await installation.hook("w1", receiver.url)
        await installation.tell(ended("e1"))
        await installation.until_recorded(1, "gone")
        await installation.tell(ended("e2"))
        await installation.until_recorded(1, "dropped")
        receiver.answer = None
        await installation.hook("w1", receiver.url)
        await installation.tell(ended("e3"))
        await installation.until_recorded(1, "delivered")
    assert subjects(receiver.got) == ["e1", "e3"]


async def test_nothing_is_lost_when_the_service_dies(
    installation: Installation,
) -> None:
    """While the receiver is away it is stopped again and again: all come, in order."""
    async with receiving() as first:
        url, port = first.url, first.port
    await installation.submit("e1")
    await installation.hook("w1", url, events=["rung.trial.closed.v1"])
    for index in range(6):
        async with serving(installation):
            await installation.tell(closed("e1", index))
            await asyncio.sleep(0.1)  # it dies somewhere in an attempt
    async with receiving(port) as receiver, serving(installation):
        await receiver.until(lambda got: len({each.event["subject"] for each in got}) == 6)
        told = list(dict.fromkeys(subjects(receiver.got)))
        assert told == [f"e1.{index}" for index in range(6)]
        assert len({each.headers["webhook-id"] for each in receiver.got}) == 6


async def test_thresholds_and_lines_are_told_once(
    installation: Installation,
) -> None:
    """Of each trial, whatever it reports afterwards; matches of log policies as they come."""

    def validated(index: int, value: float) -> TrialValidated:
        return TrialValidated(
            experiment_id="e1",
            trial_id=f"e1.{index}",
            run=1,
            steps_completed=int(value * 100),
            metrics={"accuracy": value},
        )

    line = LogLine(rank=0, stream="stdout", level="info", time_ms=1, text="CUDA out of memory")
    printed = LogsPrinted(experiment_id="e1", trial_id="e1.0", run=1, lines=[line, line])
    matched = LogMatched(
        experiment_id="e1",
        trial_id="e1.0",
        run=1,
        agent_id="a",
        policy="oom",
        action="",
        rank=0,
        line="CUDA out of memory",
    )
    async with receiving() as receiver, serving(installation):
        await installation.submit("e1")
        await installation.hook(
            "w1",
            receiver.url,
            events=["rung.log.matched.v1"],
            metrics=[Threshold(metric="accuracy", above=0.9)],
            logs=["out of memory"],
        )
        await installation.tell(validated(0, 0.5), validated(0, 0.95), validated(0, 0.96))
        await installation.tell(validated(1, 0.99), printed, printed, matched)
        await installation.until_recorded(4, "delivered")
    found = sorted((each.event["type"], each.event["subject"]) for each in receiver.got)
    assert found == [
        ("rung.log.matched.v1", "e1.0"),
        ("rung.log.printed.v1", "e1.0"),
        ("rung.metric.passed.v1", "e1.0"),
        ("rung.metric.passed.v1", "e1.1"),
    ]
