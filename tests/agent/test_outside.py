"""How the end of a part is told, when it may follow from what happened to another."""

import asyncio

import pytest

from rung.agent import outside
from rung.agent.outcome import Ending
from rung.agent.outside import AFTERMATH_S, NEWS_S, Outside
from rung.runtime.health.disk import ANSWERS_WITHIN_S
from rung.scheduler.settings import Settings

APART = Ending("failed", 1, None, "rank 0: Connection closed by peer", "gloo")


async def explained(heard: Outside, ending: Ending) -> "asyncio.Task[Ending | None]":
    """Return the task that waits, once it does."""
    task = asyncio.create_task(heard.explained(ending))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_part_whose_run_is_lost_has_not_failed() -> None:
    """Who failed because another agent was lost was killed, and no fault is counted."""
    heard = Outside()
    waiting = await explained(heard, APART)
    heard.ask("kill", "")
    ending = await waiting
    assert ending is not None
    assert (ending.outcome, ending.fault) == ("killed", "")
    assert ending.message.endswith(APART.message)


async def test_a_part_fails_in_the_words_of_the_cause() -> None:
    """What failed on another agent is what is told here."""
    heard = Outside()
    waiting = await explained(heard, APART)
    heard.ask("kill", "rank 3: ValueError")
    assert await waiting == APART._replace(message="rank 3: ValueError")


@pytest.mark.parametrize("words", ["rank 0: Connection closed by peer", "rank 0: ValueError"])
async def test_a_part_that_a_machine_elsewhere_failed_says_so(words: str) -> None:
    """Whatever its own words are: the searcher may read of this part first."""
    heard = Outside()
    heard.ask("kill", "rank 3: the disk is full", machine=True)
    ending = await heard.explained(APART._replace(message=words))
    assert ending is not None
    assert (ending.outcome, ending.machine) == ("failed", True)


async def test_a_machine_that_failed_a_part_is_told_in_time() -> None:
    """Nobody waits here whose own disk failed; others wait for longer than looking at it takes."""
    own = Ending("failed", 1, None, "full (Connection closed by peer)", "gloo", machine=True)
    assert await Outside().explained(own) == own
    assert ANSWERS_WITHIN_S + NEWS_S < AFTERMATH_S


async def test_to_be_asked_to_leave_explains_no_failure() -> None:
    """A run that was to checkpoint when it lost a rank waits for news of that all the same."""
    heard = Outside()
    heard.ask("preempt", "")
    waiting = await explained(heard, APART)
    heard.ask("kill", "")
    ending = await waiting
    assert ending is not None
    assert ending.outcome == "killed"


async def test_an_agent_that_goes_down_does_not_wait() -> None:
    """The run is lost with it; that is the scheduler's to say."""
    heard = Outside()
    waiting = await explained(heard, APART)
    heard.leave()
    assert await waiting is None


async def test_a_failure_of_its_own_is_told_at_once() -> None:
    """Nobody waits whose words say what went wrong, and a kill does not change them."""
    own = Ending("failed", 1, None, "rank 0: ValueError: no data", "ValueError")
    assert await Outside().explained(own) == own
    heard = Outside()
    heard.ask("kill", "")
    assert await heard.explained(own) == own


async def test_without_news_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it is clear that no agent was lost; until then one would be known to be."""
    assert Settings().agent_timeout + 10 < AFTERMATH_S
    monkeypatch.setattr(outside, "AFTERMATH_S", 0.01)
    assert await Outside().explained(APART) == APART
