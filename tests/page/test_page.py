"""The page in a real browser, before a real gateway: what a person sees and does."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from page.browser import Browser
from page.conftest import TOKEN, Site
from rung.checkpoint_gc.service import components
from rung.events import Payload, decision, decode, fact, partition_of
from rung.events.allocation import AgentJoined, DrainRequested, Slot
from rung.events.experiment import (
    DescriptionChanged,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
)
from rung.events.metric import LogLine, LogsPrinted, MetricRow, MetricsReported
from rung.events.trial import (
    MetricValue,
    TrialExited,
    TrialKillRequested,
    TrialPromoted,
    TrialStarted,
    TrialValidated,
)
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.requests.after import token_of
from rung.ledger import Draft
from rung.runtime.service import serve
from support.gateway.scenario import EXPERIMENT, History, config, play, submitted

pytestmark = pytest.mark.e2e

NONE = "\N{EN DASH}"
HOSTILE = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>\"'&amp;"


def _started(trial: int, run: int = 1) -> TrialStarted:
    return TrialStarted(
        experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.{trial}", run=run, agent_id="a"
    )


def _reported(trial: int, step: int, name: str = "error", value: float = 0.5) -> list[Payload]:
    """What an agent writes when a script reports a validation."""
    trial_id = f"{EXPERIMENT}.{trial}"
    row = MetricRow(kind="validation", step=step, time_ms=step, values={name: value})
    return [
        TrialValidated(
            experiment_id=EXPERIMENT,
            trial_id=trial_id,
            run=1,
            steps_completed=step,
            metrics={name: value, "epochs": step / 10},
        ),
        MetricsReported(experiment_id=EXPERIMENT, trial_id=trial_id, run=1, rows=[row]),
    ]


def _printed(trial: int, *texts: str, level: str = "info") -> LogsPrinted:
    return LogsPrinted(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.{trial}",
        run=1,
        lines=[
            LogLine(rank=0, stream="stdout", level=level, time_ms=1_767_225_600_000 + i, text=text)  # type: ignore[arg-type]
            for i, text in enumerate(texts)
        ],
    )


async def _requests(site: Site) -> list[type[Payload]]:
    return [type(data) for data in await _facts(site)]


async def _facts(site: Site) -> list[Payload]:
    found: list[Payload] = []
    for partition in range(site.ledger.partitions("experiments")):
        records = await site.ledger.read("experiments", partition, 0, 10_000)
        found += [decode(record.value).data for record in records]
    return found


@pytest.fixture
async def opened(site: Site, browser: Browser) -> Browser:
    """A browser that is signed in."""
    await browser.open(f"{site.url}#token={TOKEN}")
    await browser.says("Experiments", "h1")
    return browser


async def test_an_agent_that_is_drained_is_named(site: Site, opened: Browser) -> None:
    """On top, with the reason where the mouse rests; its slots are not counted any more."""
    slots = [Slot(id=0, kind="cpu", name="CPU slot 0")]
    for name in ("here", "spot"):
        await site.write(
            AgentJoined(pool="default", agent_id=name, incarnation=1, hostname="h", slots=slots)
        )
    reason = "the cloud preempts this machine"
    await site.write(DrainRequested(pool="default", agent_id="spot", incarnation=1, reason=reason))
    await opened.says("1 agent draining", "#installation")
    await opened.says("0 of 1 slot busy", "#installation")
    title = await opened.run("document.querySelector('#installation .problem').title")
    assert title == f"spot: {reason}"


async def test_a_token_in_the_address_is_taken_out_of_it(site: Site, browser: Browser) -> None:
    """It signs in, is kept for this tab alone, and does not stay in the address."""
    await browser.open(f"{site.url}#token={TOKEN}")
    await browser.says("No experiments yet")
    assert await browser.run("location.href") == f"{site.url}#/"
    assert await browser.run("Object.values(sessionStorage)") == [TOKEN]
    assert await browser.run("localStorage.length + document.cookie.length") == 0
    await browser.run("location.reload()")
    await browser.says("No experiments yet")


async def test_writes_at_the_same_time_are_all_read(opened: Browser) -> None:
    """Neither one's token includes the other's: what the page sends along stands for both."""
    first = token_of("l1", {("experiments", 0): 7, ("experiments", 1): 3})
    second = token_of("l1", {("experiments", 0): 5, ("pools", 0): 2})
    other = token_of("l2", {("experiments", 0): 0})
    merged = [
        await opened.run(f"import('/api.js').then((api) => api.merged({one!r}, {two!r}))")
        for one, two in ((first, second), (second, first), (first, other))
    ]
    both = [["experiments", 0, 7], ["experiments", 1, 3], ["pools", 0, 2]]
    read = [json.loads(base64.urlsafe_b64decode(text + "==")) for text in merged]

    assert [(ledger_id, sorted(rows)) for ledger_id, rows in read] == [
        ("l1", both),
        ("l1", both),
        ("l2", [["experiments", 0, 0]]),
    ]


async def test_a_wrong_token_is_asked_for_again(site: Site, browser: Browser) -> None:
    """Without a token there is a form; a wrong one is refused, the right one opens the page."""
    await browser.open(site.url)
    await browser.says("Token", ".signin")
    await browser.type("wrong")
    await browser.press("Enter")
    await browser.says(
        "The server does not accept this token. `rung up` makes a new one at each start", ".signin"
    )
    await browser.type(TOKEN)
    await browser.press("Enter")
    await browser.says("No experiments yet")
    refused = [text for text in browser.complaints if "401" in text]
    assert refused == browser.complaints
    browser.complaints.clear()


@pytest.mark.parametrize(
    ("period", "shown"),
    [
        (None, "every 1 min 0 s; one holds training for 0.25 s"),
        ({"batches": 50}, "every 50 batches"),
        ({"batches": 0}, "no period"),
    ],
)
async def test_a_trial_shows_how_often_it_checkpoints(
    site: Site, opened: Browser, period: Any, shown: str
) -> None:
    """As its experiment file says; without a word there, as its run has chosen."""
    experiment = submitted()
    chosen: dict[str, Any] = {"checkpoint_period_s": 60.0, "checkpoint_held_s": 0.25}
    row = MetricRow(kind="system", step=7, time_ms=7, values=chosen)
    trial_id = f"{EXPERIMENT}.0"
    await site.write(
        structs.replace(experiment, config={**experiment.config, "min_checkpoint_period": period}),
        _started(0),
        MetricsReported(experiment_id=EXPERIMENT, trial_id=trial_id, run=1, rows=[row]),
        *_reported(0, 10),
    )
    await opened.click(".list a.name")
    await opened.click(".trials tbody tr")
    await opened.says(shown, ".drawer .facts")


async def test_a_search_is_shown_from_the_list_to_the_trial(site: Site, opened: Browser) -> None:
    """The list leads to the experiment, its table to a trial, and that says why it is as it is."""
    await site.play(play(1))
    await opened.click(".list a.name")
    await opened.says("digits", ".head h1")
    await opened.says("Rungs", ".search")
    state = await opened.text(".head .badge")
    assert state in {"completed", "errored"}
    await opened.until("document.querySelectorAll('.trials tbody tr').length >= 9")

    values = (
        "[...document.querySelectorAll('.trials tbody td:nth-child(3)')].map(e => e.innerText)"
    )
    shown = [float(text) for text in await opened.run(values) if text != NONE]
    assert shown == sorted(shown)
    await opened.click(".trials th:nth-child(3) button")
    shown = [float(text) for text in await opened.run(values) if text != NONE]
    assert shown == sorted(shown, reverse=True)

    await opened.click(".trials tbody tr:nth-child(2)")
    await opened.says("Story", ".drawer")
    await opened.says("Hyperparameters", ".drawer")
    reason = await opened.text(".drawer .reason")
    assert reason
    await opened.press("Escape")
    await opened.until("document.querySelector('.drawer').hidden")


async def test_why_trials_errored_is_said_with_a_log(site: Site, opened: Browser) -> None:
    """The list counts them; the header says the commonest cause, and leads to a trial's log."""
    search = submitted(name="random", max_trials=5, num_rungs=None)
    search.config["max_restarts"] = 0
    history = History()
    history.write(search)
    for index, message in enumerate(("OSError: no", "KeyError: 'a'", "KeyError: 'a'")):
        history.decide()
        history.write(
            TrialExited(
                experiment_id=EXPERIMENT,
                trial_id=f"{EXPERIMENT}.{index}",
                run=1,
                agent_id="a",
                outcome="failed",
                exit_code=1,
                signal=None,
                message=message,
            )
        )
    history.decide()
    await site.play(history)

    await opened.says("(3 errored)", ".list")
    await opened.click(".list a.name")
    await opened.says("KeyError: 'a'", ".failures li:first-child")
    assert (await opened.text(".failures li:first-child")).startswith("2 of 5 trials errored: ")
    assert (await opened.text(".failures")).endswith("OSError: no (log of trial 0)")
    await opened.click(".failures li:first-child a")
    await opened.until("location.hash.endsWith('/logs?trial=1')")


async def test_a_trial_with_anothers_weights_names_it(site: Site, opened: Browser) -> None:
    """The trial of population-based training is shown with the one that it started from."""
    await site.play(play(1))
    cause = fact(submitted(), source="/rung/test", origin="t", sequence=0, time="")
    copied = TrialPromoted(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.0",
        rung=1,
        length=3,
        reason="exploits",
        parent=f"{EXPERIMENT}.4",
    )
    event = decision(copied, source="/rung/searcher", cause=cause, position=10_000, index=0)
    await site.ledger.append([Draft.of(event)])
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}/search?trial=0'")
    await opened.says("Trial 0", ".drawer h2")
    await opened.until("document.querySelector('.drawer .facts').innerText.match(/trial 4/i)")


async def test_curves_are_drawn_and_tell_what_is_under_the_pointer(
    site: Site, opened: Browser
) -> None:
    """Looking at a curve names trial, value and step and marks its row; arrow keys walk."""
    await site.write(submitted())
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await opened.until("document.querySelectorAll('.trials tbody tr').length >= 3")
    for step in (10, 20, 30):
        await site.write(*_reported(0, step, value=1 / step), *_reported(1, step, value=0.5))
    await opened.until("document.querySelector('.trials tbody').innerText.includes('0.5')")
    await opened.until(
        "(() => { const c = document.querySelectorAll('.chart canvas')[1];"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "const tones = new Set(); for (let i = 0; i < d.length; i += 4)"
        " if (d[i + 3] > 200) tones.add(d[i] + ',' + d[i + 1] + ',' + d[i + 2]);"
        "return tones.size > 5 })()"
    )
    await opened.run("document.querySelector('canvas.curves').focus()")
    async with asyncio.timeout(20):
        while "trial 0 · 0.03333 at step 30" not in await opened.text(".chart .tip"):
            await opened.press("ArrowDown")  # walks; the newest report may be on its way
    await opened.until("document.querySelector('.trials tr.looked')")
    await opened.press("Enter")
    await opened.says("Trial 0", ".drawer h2")


async def test_a_range_on_an_axis_keeps_trials(site: Site, opened: Browser) -> None:
    """Dragging along an axis leaves the trials within; a button brings all back."""
    await site.write(submitted())
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    for trial in range(3):
        await site.write(*_reported(trial, 10, value=trial / 10))
    await opened.says("0.2", ".trials tbody")
    await opened.until("document.querySelector('canvas.parallel').checkVisibility()")
    x, y, width, height = await opened.run(
        "(() => { const c = document.querySelector('canvas.parallel');"
        "c.scrollIntoView({block: 'center'}); const b = c.getBoundingClientRect();"
        "return [b.x, b.y, b.width, b.height] })()"
    )
    last_axis, bottom, middle = x + width - 46, y + height - 12, y + height * 0.6
    await opened.mouse("mouseMoved", last_axis, bottom)
    await opened.mouse("mousePressed", last_axis, bottom, button="left", clickCount=1)
    await opened.mouse("mouseMoved", last_axis, middle, button="left")
    await opened.mouse("mouseReleased", last_axis, middle, button="left", clickCount=1)
    await opened.says("1 trial of 3 kept")
    await opened.until("document.querySelectorAll('.trials tbody tr').length === 1")
    await opened.click(".controls:has(h2) button.small:not([hidden])")
    await opened.until("document.querySelectorAll('.trials tbody tr').length === 3")


async def test_what_happens_is_shown_without_reloading(site: Site, opened: Browser) -> None:
    """A new experiment, a better value and a printed line appear by themselves."""
    await site.write(submitted())
    await opened.says("digits", ".list")
    await opened.click(".list a.name")
    await opened.says("active", ".head .badge")
    await site.write(_started(0), *_reported(0, 10, value=0.25))
    await opened.says("0.25", ".head .facts")
    await opened.says("running", ".trials")
    await site.write(*_reported(0, 20, value=0.125))
    await opened.says("0.125", ".head .facts")
    await opened.click(".tabs [data-tab=logs]")
    await opened.says("No line is like that", ".controls")
    await site.write(_printed(0, "epoch one"), _printed(1, "oh no", level="error"))
    await opened.says("epoch one", ".lines")
    await opened.says("oh no", ".lines .error")
    await opened.run(
        "(() => { const s = document.querySelector('select[aria-label=\"Least level\"]');"
        "s.value = 'error'; s.dispatchEvent(new Event('change')) })()"
    )
    await opened.until("!document.querySelector('.lines').innerText.includes('epoch one')")
    await opened.says("oh no", ".lines")


async def test_what_an_event_tells_is_asked_for(site: Site, opened: Browser) -> None:
    """The page asks for an experiment as it was at the newest event, whoever answers."""
    await site.write(submitted())
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await opened.says("active", ".head .badge")
    await opened.run(
        "window.asked = []; const fetched = window.fetch;"
        "window.fetch = (url, how) => {"
        f"  if (url.endsWith('/{EXPERIMENT}?trials=none')) asked.push(how.headers['Rung-After']);"
        "  return fetched(url, how) }; null"
    )
    partition = partition_of(EXPERIMENT, site.ledger.partitions("experiments"))
    position = await site.ledger.end("experiments", partition)
    await site.write(*_reported(0, 10, value=0.25))
    known = f"[{position}, 'experiments', {partition}]"
    await opened.until(
        f"(([position, topic, partition]) => asked.filter(Boolean).some((token) =>"
        " JSON.parse(atob(token.replaceAll('-', '+').replaceAll('_', '/')))[1].some((row) =>"
        f" row[0] === topic && row[1] === partition && row[2] >= position)))({known})"
    )
    await opened.says("0.25", ".head .facts")


async def test_a_server_that_is_far_behind_is_shown_as_it_is(
    site: Site, opened: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what the page has seen is refused for now, it takes what there is."""
    await site.write(submitted())
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await opened.says("active", ".head .badge")

    async def never(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(ReadModels, "reached", never)
    validated, _ = _reported(0, 10, value=0.25)
    event = fact(validated, source="/rung/test", origin="t", sequence=0, time="t")
    await site.ledger.append([Draft.of(event)])
    await opened.says("0.25", ".head .facts")
    assert all("503" in text for text in opened.complaints), opened.complaints
    opened.complaints.clear()


async def test_buttons_ask_and_do(site: Site, opened: Browser) -> None:
    """Pausing takes one click; killing asks first, and going back or elsewhere does nothing."""
    await site.write(submitted())
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    buttons = ".head .buttons button:nth-child"
    await opened.click(f"{buttons}(1)")
    await opened.says("paused", ".head .badge")
    await opened.click(f"{buttons}(2)")
    await opened.says("active", ".head .badge")
    await opened.click(f"{buttons}(4)")
    await opened.says("Kill digits?", "dialog")
    await opened.click("dialog button:nth-child(1)")
    await opened.until("!document.querySelector('dialog')")
    await opened.click(f"{buttons}(4)")
    await opened.says("Kill digits?", "dialog")
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}/logs'")
    await opened.until("!document.querySelector('dialog')")
    assert KillRequested not in await _requests(site)
    await opened.click(f"{buttons}(4)")
    await opened.click("dialog .danger")
    await opened.says("cancel", ".head .badge")
    requests = await _requests(site)
    assert PauseRequested in requests
    assert KillRequested in requests


async def test_an_experiment_is_deleted(site: Site, opened: Browser) -> None:
    """Once it has ended, after a question that says what goes; then the page shows it no more."""
    remove = ".head .buttons button:nth-child(5)"
    await site.write(submitted())
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await opened.says("active", ".head .badge")
    assert await opened.run(f"document.querySelector('{remove}').hidden")
    await site.write(KillRequested(experiment_id=EXPERIMENT))
    for index in range(3):
        trial_id = f"{EXPERIMENT}.{index}"
        await site.write(
            TrialExited(
                experiment_id=EXPERIMENT,
                trial_id=trial_id,
                run=1,
                agent_id="a",
                outcome="killed",
                exit_code=None,
                signal=9,
                message="",
            )
        )
    await opened.says("canceled", ".head .badge")
    collecting = asyncio.create_task(serve(site.ledger, components(site.store)))
    try:
        await opened.click(remove)
        await opened.says("Delete digits?", "dialog")
        await opened.says("3 trials with all metrics", "dialog")
        await opened.click("dialog .danger")
        await opened.says("was deleted at", ".page .empty")
        assert await opened.run("document.querySelector('.head').hidden")
        assert all("410" in text for text in opened.complaints), opened.complaints
        opened.complaints.clear()
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


async def test_a_trial_is_killed(site: Site, opened: Browser) -> None:
    """From its panel, after a question; a trial that has ended has no such button."""
    await site.write(submitted())
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}/search?trial=0'")
    await opened.says("Trial 0", ".drawer h2")
    await opened.click(".drawer .danger")
    await opened.says("Kill trial 0?", "dialog")
    await opened.click("dialog .danger")
    await opened.says("kill requested", ".drawer .story")
    killed = TrialKillRequested(experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.0")
    assert killed in await _facts(site)
    await site.write(
        TrialExited(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.0",
            run=1,
            agent_id="a",
            outcome="killed",
            exit_code=None,
            signal=9,
            message="",
        )
    )
    await opened.says("its user killed it", ".drawer .reason")
    await opened.until("document.querySelector('.drawer .danger').hidden")


async def test_events_say_why_and_are_audited(site: Site, opened: Browser) -> None:
    """The searcher's reasons are there in words, can be searched, and are decided again."""
    await site.play(play(3))
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}/events'")
    await opened.says("Planned async_halving", ".events")
    await opened.run("document.querySelector('.controls input[type=search]').focus()")
    await opened.type("promoted")
    await opened.until(
        "[...document.querySelectorAll('.event')].length &&"
        "[...document.querySelectorAll('.event')].every(e => e.innerText.includes('promoted'))"
    )
    await opened.click(".controls > button")
    await opened.says("All 8 decisions are decided the same again", ".verdict")


async def test_who_asked_for_what_is_listed(site: Site, opened: Browser) -> None:
    """A request of the page names its user; what was put on record before names somebody."""
    await site.play(play(3))
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}/log'")
    await opened.says(f"submitted experiment {EXPERIMENT} (digits)", ".acts")
    await opened.says("somebody", ".acts")


async def test_checkpoints_and_the_file_are_shown(site: Site, opened: Browser) -> None:
    """Stored checkpoints with step and size; the experiment file as written and as understood."""
    await site.play(play(1))
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}/checkpoints'")
    await opened.says("stored", "table")
    await opened.click(".tabs [data-tab=config]")
    await opened.says("name: digits", "pre")
    await opened.says('"max_trials": 9', ".search")


async def test_what_users_made_is_text_and_nothing_else(
    site: Site, opened: Browser, tmp_path: Path
) -> None:
    """Names, labels, hyperparameters, metrics, reasons and lines full of markup stay words."""
    fields = {**config(metric=HOSTILE), "name": HOSTILE, "labels": [HOSTILE]}
    fields["hyperparameters"] = {HOSTILE: {"type": "categorical", "vals": [HOSTILE, "b"]}}
    await site.write(
        ExperimentSubmitted(
            experiment_id=EXPERIMENT, config=fields, source=HOSTILE, code_digest=None
        ),
    )
    await opened.says(HOSTILE, ".list")
    await site.write(
        *_reported(0, 10, HOSTILE, 0.5),
        *_reported(1, 10, HOSTILE, 0.25),
        _printed(0, HOSTILE, "\x1b[31mred\x1b[0m"),
        TrialExited(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.0",
            run=1,
            agent_id="a",
            outcome="failed",
            exit_code=1,
            signal=None,
            message=HOSTILE,
        ),
    )
    await opened.click(".list a.name")
    await opened.says(HOSTILE, ".head h1")
    await opened.says(HOSTILE, ".trials")
    await opened.click(".trials tbody tr:nth-child(2)")
    await opened.says(HOSTILE, ".drawer .reason")
    await opened.click(".drawer .close")
    for tab, place in (("logs", ".lines"), ("events", ".events"), ("config", "pre")):
        await opened.click(f".tabs [data-tab={tab}]")
        await opened.says(HOSTILE, place)
    await opened.click(".tabs [data-tab=logs]")
    await opened.until("document.querySelector('.lines').innerText.endsWith('red')")
    assert await opened.run("window.pwned") is None
    assert await opened.run("document.querySelectorAll('main img, main script').length") == 0
    await opened.screenshot(tmp_path / "hostile.png")


_TYPE = """(() => {{
    const box = document.querySelector('.headline input[type=search]');
    box.value = {text};
    box.dispatchEvent(new Event('input'));
}})()"""


async def test_a_list_is_filtered_by_its_address(
    site: Site, opened: Browser, tmp_path: Path
) -> None:
    """What is typed stands in the address, which selects the same; a wrong term says what is."""
    for number, name in enumerate(("alpha", "beta")):
        fields = {**config(), "name": name, "hyperparameters": {"lr": number}}
        await site.write(
            ExperimentSubmitted(
                experiment_id=f"{name}000", config=fields, source="", code_digest=None
            )
        )
    rows = "[...document.querySelectorAll('.list a.name')].map(e => e.textContent).join()"
    await opened.until(f"{rows}.length > 8")
    await opened.run(_TYPE.format(text="'hp.lr>0.5 -label:none'"))
    await opened.until(f"{rows} === 'beta'")
    assert await opened.run("location.hash") == "#/?filter=hp.lr%3E0.5+-label%3Anone"
    await opened.run("location.hash = '#/?filter=alpha'")
    await opened.until(f"{rows} === 'alpha'")
    await opened.run(_TYPE.format(text="'lable:none'"))
    await opened.says("did you mean label?", ".page .problem")
    await opened.screenshot(tmp_path / "filter.png")
    await opened.run(_TYPE.format(text="''"))
    await opened.until(f"{rows}.length > 8 && document.querySelector('.page .problem').hidden")
    assert all("400" in text for text in opened.complaints), opened.complaints
    opened.complaints.clear()


async def test_chosen_experiments_are_changed_together(
    site: Site, opened: Browser, tmp_path: Path
) -> None:
    """After a question where there are several; what is refused is told, and stays chosen."""
    names = ("alpha", "beta", "gamma")
    for name in names:
        fields = {**config(), "name": name}
        await site.write(
            ExperimentSubmitted(
                experiment_id=f"{name}000", config=fields, source="", code_digest=None
            )
        )
    rows = "[...document.querySelectorAll('.list a.name')].map(e => e.textContent).sort().join()"
    await opened.until(f"{rows} === 'alpha,beta,gamma'")
    bar = "document.querySelector('.bulk')"
    assert await opened.run(f"{bar}.hidden")
    await opened.click("[aria-label='Choose alpha']")
    await opened.click("[aria-label='Choose beta']")
    assert await opened.run("location.hash") in {"", "#/"}, "a checkbox opens nothing"
    await opened.says("2 experiments chosen", ".bulk")
    await opened.click("[aria-label='Label to add']")
    await opened.type("keep")
    await opened.screenshot(tmp_path / "bulk.png")
    await opened.click(".bulk button:nth-of-type(4)")
    await opened.says("2 experiments will be labelled", "dialog")
    await opened.click("dialog .danger")
    await opened.until("document.querySelectorAll('.list .labels').length === 3")
    labels = "[...document.querySelectorAll('.list .label')].filter(e => e.innerText === 'keep')"
    await opened.until(f"{labels}.length === 2")
    await opened.until(f"{bar}.hidden")

    await opened.click("[aria-label='Choose gamma']")
    await opened.click(".bulk .danger")
    await opened.says("Delete: 1 experiment?", "dialog")
    await opened.click("dialog .danger")
    await opened.says("experiment gamma000 has not ended (active)", "#toasts")
    await opened.says("1 experiment chosen", ".bulk")
    await opened.click("[aria-label='Choose all that are shown']")
    await opened.says("3 experiments chosen", ".bulk")
    await opened.click(".bulk button:nth-of-type(2)")
    await opened.says("3 experiments will be archived", "dialog")
    await opened.click("dialog button:nth-child(1)")
    await opened.until("!document.querySelector('dialog')")
    await opened.click(".bulk button:nth-of-type(2)")
    await opened.click("dialog .danger")
    await opened.until(f"{rows} === '' && {bar}.hidden")
    facts = [it for it in await _facts(site) if isinstance(it, DescriptionChanged)]
    assert sorted(it.experiment_id for it in facts if it.archived) == [f"{it}000" for it in names]
    assert sorted(it.experiment_id for it in facts if it.add_labels) == ["alpha000", "beta000"]


async def test_what_cannot_be_seen_is_shown(site: Site, opened: Browser) -> None:
    """Bidirectional marks, controls and what has no width do not make a name look like another."""
    name = "\u202egnp.exe\u2066x\u200b\x9b2J\x07 \U000e0041"
    shown = r"\u202egnp.exe\u2066x\u200b\u009b2J\u0007 \u{e0041}"
    fields = {**config(), "name": name, "labels": [name]}
    await site.write(
        ExperimentSubmitted(experiment_id=EXPERIMENT, config=fields, source="", code_digest=None),
        _printed(0, name),
    )
    await opened.says(shown, ".list")
    assert await opened.run("document.querySelector('.list span.label').textContent") == shown
    await opened.click(".list a.name")
    await opened.says(shown, ".head h1")
    assert (await opened.run("document.title")).startswith(shown)
    await opened.click(".tabs [data-tab=logs]")
    await opened.says(shown, ".lines")


async def test_the_page_comes_back_when_the_server_does(site: Site, opened: Browser) -> None:
    """A gateway that goes away is told of, and one that is back is followed without a loss."""
    await site.write(submitted(), _started(0), *_reported(0, 10, value=0.5))
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await opened.says("0.5", ".head .facts")
    await site.stop()
    await opened.says("not connected", "#live")
    await site.write(*_reported(0, 20, value=0.25))
    await site.start()
    await opened.says("live", "#live")
    await opened.says("0.25", ".head .facts")
    assert all("ERR_" in text for text in opened.complaints), opened.complaints
    opened.complaints.clear()


async def test_an_unknown_experiment_says_so(opened: Browser) -> None:
    """An address of an experiment that is not there gives the server's words."""
    await opened.run("location.hash = '#/x/nosuch00'")
    await opened.says("nosuch00", ".page .empty")
    opened.complaints.clear()


@pytest.mark.parametrize(
    "tab", ["constructor", "__proto__", "toString", "hasOwnProperty", "%", "%E0%A4"]
)
async def test_an_address_that_names_no_tab_shows_the_first(
    site: Site, opened: Browser, tab: str
) -> None:
    """Names that every object of JavaScript has, and what cannot be decoded, are no tabs."""
    await site.play(play(1))
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}/{tab}'")
    await opened.says("Search", "nav.tabs a[aria-current=page]")


async def test_an_experiment_with_a_name_of_the_language_is_not_found(opened: Browser) -> None:
    """`#/x/__proto__/constructor` gives the server's words, and no error of the page."""
    await opened.run("location.hash = '#/x/__proto__/constructor'")
    await opened.says("Search", "nav.tabs a[aria-current=page]")
    await opened.says("__proto__", ".page .empty")
    assert all("404" in text for text in opened.complaints), opened.complaints
    opened.complaints.clear()


async def test_numbers_with_units(opened: Browser) -> None:
    """Sizes below the next unit are whole numbers; one of a unit is in the singular."""
    shown = await opened.run(
        "import('/format.js').then(({ bytes, lasting }) => ["
        "bytes(0), bytes(1023), bytes(1024), bytes(1020 * 1024), bytes(1023.9 * 1024),"
        "bytes(12.34 * 1024 ** 3), lasting(1, 'batches'), lasting(2, 'batches'),"
        "lasting(1, 'epochs'), lasting(0.5, 'epochs')])"
    )
    sizes = ["0 B", "1,023 B", "1.00 KiB", "1,020 KiB", "1.00 MiB", "12.3 GiB"]
    assert shown == [*sizes, "1 batch", "2 batches", "1 epoch", "0.5 epochs"]
    story = await opened.run(
        "import('/events.js').then(({ entryOf }) => entryOf({ type: 'rung.run.requested.v1', data:"
        " { trial_id: 'a.0', spec: { trial_id: 'a.0', run: 1, length: 1, time_metric: 'epochs' },"
        " reason: 'first run' } }).text)"
    )
    assert story == "Trial 0: run 1 wanted, to 1 epoch: first run"


async def test_the_address_names_the_open_trial(site: Site, opened: Browser) -> None:
    """After each click, after Esc, and back from another tab; the way back closes it."""
    await site.play(play(1))
    start = f"#/x/{EXPERIMENT}"
    await opened.run(f"location.hash = '{start}'")
    rows = ".trials tbody tr"
    await opened.until(f"document.querySelectorAll('{rows}').length > 3")
    for place in (1, 3):
        await opened.click(f"{rows}:nth-child({place}) button")
        index = await opened.text(f"{rows}:nth-child({place}) button")
        await opened.says(f"Trial {index}", ".drawer h2")
        assert await opened.run("location.hash") == f"{start}/search?trial={index}"
        await opened.click(".tabs [data-tab=logs]")
        await opened.click(".tabs [data-tab=search]")
        await opened.says(f"Trial {index}", ".drawer h2")
        await opened.run("document.querySelector('.drawer h2').focus()")
        await opened.press("Escape")
        await opened.until("document.querySelector('.drawer').hidden")
        assert await opened.run("location.hash") == f"{start}/search"

    await opened.run(f"location.hash = '{start}/search?trial=2'")
    await opened.says("Trial 2", ".drawer h2")
    await opened.run("history.back()")
    await opened.until("document.querySelector('.drawer').hidden")
    await opened.run(f"location.hash = '{start}/search?trial=4711'")
    await opened.says("There is no trial 4711 so far", "#toasts")
    assert await opened.run("location.hash") == f"{start}/search"


async def test_an_unknown_experiment(opened: Browser) -> None:
    """The page says that there is none, and shows neither charts nor tabs."""
    await opened.run("location.hash = '#/x/zzzzzzzz'")
    await opened.says("zzzzzzzz", ".page .empty")
    assert not await opened.run(
        "['.chart', '.tabs', '.head'].some((it) => document.querySelector(it)?.checkVisibility())"
    )
    await opened.run("location.hash = '#/'")
    await opened.says("Experiments", "h1")
    refused = [text for text in opened.complaints if "404" in text]
    assert refused == opened.complaints
    opened.complaints.clear()


def _cpu(minutes: float) -> MetricsReported:
    """Return a reading of the machine of trial 0, so long after its first."""
    time_ms = 1_767_225_600_000 + round(minutes * 60_000)
    values: dict[str, MetricValue] = {"cpu_percent": 10 * minutes}
    row = MetricRow(kind="system", step=time_ms // 1000, time_ms=time_ms, values=values)
    trial_id = f"{EXPERIMENT}.0"
    return MetricsReported(experiment_id=EXPERIMENT, trial_id=trial_id, run=1, rows=[row])


async def _choose_metric(opened: Browser, name: str) -> None:
    """Have a metric drawn, once there is one of that name."""
    await opened.until(f"document.querySelector('select').innerText.includes('{name}')")
    await opened.run(
        "(() => { const choice = document.querySelector('select');"
        f"choice.value = [...choice.options].find((it) => it.text.includes('{name}')).value;"
        "choice.dispatchEvent(new Event('change')) })()"
    )


async def test_metrics_of_the_machine_lie_on_an_axis_of_time(site: Site, opened: Browser) -> None:
    """From the first report on, in a unit that fits; not against seconds since 1970."""
    await site.write(submitted())
    await opened.run(
        "window.drawn = [];"
        "const paint = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {"
        " window.drawn.push(text); return paint.call(this, text, ...where) }"
    )
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await site.write(*_reported(0, 10), *(_cpu(minutes) for minutes in (0, 2, 4)))
    await _choose_metric(opened, "cpu_percent")
    await opened.until("window.drawn.includes('min')")
    await opened.run("window.drawn = []")
    await site.write(_cpu(12))
    await opened.until("window.drawn.includes('10')")
    shown = await opened.run("window.drawn")
    assert {"0", "2", "4", "6", "8", "10", "min"} <= set(shown)
    assert not any(text.endswith("e9") for text in shown)


COUNT_PIECES = """
window.pieces = [];
const { beginPath, moveTo, stroke } = CanvasRenderingContext2D.prototype;
Object.assign(CanvasRenderingContext2D.prototype, {
    beginPath() { this.moved = 0; return beginPath.call(this) },
    moveTo(...where) { this.moved += 1; return moveTo.apply(this, where) },
    stroke() { if (this.lineWidth > 2) window.pieces.push(this.moved); return stroke.call(this) },
});
0;
"""
"""Notes of how many pieces each thick line is: the best trial's."""


async def test_a_line_of_the_machine_ends_where_nothing_ran(site: Site, opened: Browser) -> None:
    """A pause of the trial is a gap; usual readings are one line."""
    await site.write(submitted())
    await opened.run(COUNT_PIECES)
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await site.write(*_reported(0, 10), *(_cpu(minutes) for minutes in (0, 2, 4, 6, 10)))
    await _choose_metric(opened, "cpu_percent")
    await site.write(*(_cpu(minutes) for minutes in (100, 102)))
    await opened.until("window.pieces.includes(2)")
    assert await opened.run("Math.max(...window.pieces)") == 2


COUNT_STROKES = """
window.strokes = 0; window.worst = 0; window.total = 0;
const stroke = CanvasRenderingContext2D.prototype.stroke;
CanvasRenderingContext2D.prototype.stroke = function (...more) {
    window.strokes += 1; window.total += 1;
    return stroke.apply(this, more);
};
(function frame() {
    window.worst = Math.max(window.worst, window.strokes); window.strokes = 0;
    requestAnimationFrame(frame);
})();
"""


async def test_a_search_of_thousands_of_trials_does_not_freeze_the_page(
    site: Site, opened: Browser
) -> None:
    """A frame draws some lines, all together the best and some of the others, as is said."""
    trials = 2_500
    history = History()
    search = submitted(name="random", max_trials=trials, max_concurrent_trials=trials)
    history.write(search, origin="client/first")
    history.decide()
    for trial in range(trials):
        for data in _reported(trial, 10, value=1.0 + trial):
            history.write(data)
    await opened.run(COUNT_STROKES)
    await site.play(history)
    await opened.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await opened.says("lines of 2,000 of 2,500 trials, the best among them")
    await opened.until("window.total >= 2000 && document.querySelector('canvas.layer')")
    before = await opened.run("window.total")
    await site.write(*_reported(0, 20, value=0.5))
    await opened.says("0.5", "table.trials tbody tr")
    await opened.until(f"window.total >= {before} + 2000")
    assert await opened.run("window.worst") < 400
