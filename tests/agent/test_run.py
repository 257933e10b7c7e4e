"""One run: what its process does, what the agent makes of it."""

from agent.rig import Rig
from rung.events.allocation import AllocationReleased
from rung.events.trial import TrialExited, TrialStarted


async def test_finished(running: Rig) -> None:
    """A script that ends by itself is started, finished and released, in this order."""
    ended = await running.run_script("print('hello')")
    kinds = [type(payload) for payload in ended.payloads if "Log" not in type(payload).__name__]
    assert kinds == [TrialStarted, TrialExited, AllocationReleased]
    assert ("finished", 0, None, "") == (
        ended.exit.outcome,
        ended.exit.exit_code,
        ended.exit.signal,
        ended.exit.message,
    )
    assert ended.printed() == ["hello"]
