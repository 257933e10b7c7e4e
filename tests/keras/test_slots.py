"""A Keras script on the slots of a real agent, with what its launchers set."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rung.events.checkpoint import CheckpointStored
from rung.events.metric import MetricsReported
from support.agent_rig import Ended, Rig
from support.framework_trials import QUIET, needs

pytestmark = [
    needs("keras", "tensorflow"),
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]
SCRIPT = (Path(__file__).parents[1] / "support" / "trials" / "keras_slots.py").read_text()
CONFIG: dict[str, Any] = {
    "searcher": {"metric": "loss"},
    "scheduling_unit": 1,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """Give an agent with four slots whose runs start with torch imported."""
    item = Rig(tmp_path_factory.mktemp("slots"))
    item.start(cold=False)
    try:
        yield item
    finally:
        await item.close()


def options(backend: str, slots: int, **config: Any) -> dict[str, Any]:
    """Return what to grant a run with."""
    variables = [f"{name}={value}" for name, value in QUIET.items()]
    return {
        "slots": list(range(slots)),
        "environment": {"environment_variables": [f"KERAS_BACKEND={backend}", *variables]},
        **CONFIG,
        **config,
    }


def curve(*runs: Ended) -> dict[tuple[str, int], dict[str, Any]]:
    """Return what was reported, by kind and step; what is of the machine differs at each run."""
    rows = (row for run in runs for row in run.rows)
    return {(kind, step): values for kind, step, values in rows if kind != "system"}


async def test_ranks_that_are_asked_to_leave_go_on_from_there(rig: Rig) -> None:
    """Both leave behind the same step; with dropout the curve is the unbroken one, bit for bit."""
    calm = await rig.run_script(SCRIPT, **options("torch", 2, data={"noise": True}))
    assert calm.exit.outcome == "finished", calm.printed("stderr")
    code, waits = rig.code(train=SCRIPT), {"noise": True, "waits": True}
    allocation = await rig.grant(code=code, **options("torch", 2, data=waits))
    trial_id = allocation.rpartition(".")[0]

    def trains(reported: MetricsReported) -> bool:
        kinds = {row.kind for row in reported.rows}
        return reported.trial_id == trial_id and "training" in kinds

    await rig.until(MetricsReported, trains)
    await rig.signal(allocation, "preempt")
    first = await rig.end_of(allocation)
    assert first.exit.outcome == "preempted", first.printed("stderr")
    stored = [each.checkpoint_id for each in first.of(CheckpointStored)][::-1]
    second = await rig.end_of(
        await rig.grant(code=code, restore=stored, **options("torch", 2, data={"noise": True}))
    )
    assert second.exit.outcome == "finished", second.printed("stderr")
    assert curve(first, second) == curve(calm)


async def test_tensorflows_launcher_will_do(rig: Rig) -> None:
    """Ranks that find `TF_CONFIG` train together as those of the default launcher do."""
    curves = []
    for launcher in ("tensorflow", "torch"):
        launched = {"distributed": {"launcher": launcher}}
        ended = await rig.run_script(SCRIPT, **options("tensorflow", 2, **launched))
        assert ended.exit.outcome == "finished", ended.printed("stderr")
        curves.append(curve(ended))
    assert [step for kind, step in curves[0] if kind == "training"] == list(range(1, 11))
    assert curves[0] == curves[1]


async def test_another_launcher_is_refused(rig: Rig) -> None:
    """The field to change is named."""
    launched = {"distributed": {"launcher": "horovod"}}
    ended = await rig.run_script(SCRIPT, **options("torch", 2, **launched))
    assert ended.exit.outcome == "failed"
    assert "distributed.launcher" in ended.exit.message
