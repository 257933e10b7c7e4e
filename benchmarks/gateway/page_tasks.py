"""How long the page stands still while a large search runs: its longest tasks, in a real browser.

A Chromium without a GPU shows the search of `show.py`, of which a trial reports four times a
second, at first with 1,000 trials, then with 10,000, while other clients listen to it. A task
keeps the page from drawing and from answering its user; one of more than 50 ms counts as long.

    python -m benchmarks.gateway.page_tasks [--trials N,N,…] [--seconds N] [--listeners N]
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Final

import structlog
from benchmarks.figures import figure
from benchmarks.gateway.listeners import listening
from benchmarks.gateway.show import ID, OPEN, TOKEN, gateway, written

from page.browser import Browser, Chromium
from rung.events.trial import TrialValidated
from rung.ledger import MemoryLedger
from rung.runtime import FactWriter

AIM_MS: Final = 200
WIDTH, HEIGHT = 1400, 1600
SETTLED_S: Final = 8.0
OBSERVE: Final = """
window.tasks = [];
new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((it) => it.duration)))
    .observe({ entryTypes: ["longtask"] });
"""


async def measure(trials: int, seconds: float, listeners: int) -> list[float]:
    """Return the milliseconds of each long task while a search of so many trials is shown."""
    ledger = await written(trials)
    with (
        tempfile.TemporaryDirectory() as profile,
        Chromium(Path(profile)) as chromium,
        contextlib.ExitStack() as others,
    ):
        async with gateway(ledger) as port, chromium.browse() as browser:
            following = listening(f"http://127.0.0.1:{port}", TOKEN, ID, listeners)
            await asyncio.to_thread(others.enter_context, following)
            await browser.call("Page.addScriptToEvaluateOnNewDocument", source=OBSERVE)
            await browser.call(
                "Emulation.setDeviceMetricsOverride",
                width=WIDTH,
                height=HEIGHT,
                deviceScaleFactor=1,
                mobile=False,
            )
            await browser.open(f"http://127.0.0.1:{port}/#token={TOKEN}")
            await browser.says("Experiments", "h1")
            await browser.run(f"location.hash = '#/x/{ID}'")
            await browser.until("document.querySelectorAll('table.trials tbody tr').length > 10")
            await asyncio.sleep(SETTLED_S)  # what is loaded first is not measured
            return await reported(browser, ledger, trials, seconds)


async def reported(
    browser: Browser, ledger: MemoryLedger, trials: int, seconds: float
) -> list[float]:
    """Have running trials report for some seconds; return the long tasks meanwhile."""
    writer = FactWriter(ledger, source="/bench", origin="agent/more")
    await browser.run("window.tasks.length = 0")
    end, step = time.monotonic() + seconds, 1000
    while time.monotonic() < end:
        step += 1
        fact = TrialValidated(
            experiment_id=ID,
            trial_id=f"{ID}.{trials - 1 - step % OPEN}",
            run=1,
            steps_completed=step,
            metrics={"loss": 1 / step, "epochs": 1},
        )
        await writer.write(fact)
        await asyncio.sleep(0.25)
    tasks: list[float] = json.loads(await browser.run("JSON.stringify(window.tasks)"))
    return tasks


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", default="1000,10000")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--listeners", type=int, default=200)
    asked = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    for trials in map(int, asked.trials.split(",")):
        tasks = asyncio.run(measure(trials, asked.seconds, asked.listeners))
        longest = max(tasks, default=0.0)
        figure(
            f"page of a running search, {trials:,} trials, {asked.listeners} listeners: a task",
            longest,
            "ms",
            at_most=AIM_MS,
            beside=f"{len(tasks)} long ones, {sum(tasks) / 1000:.2f} of {asked.seconds:.0f} s",
        )


if __name__ == "__main__":
    main()
