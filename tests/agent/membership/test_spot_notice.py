"""The cloud says that it takes the machine away: trials checkpoint, the agent says goodbye."""

import asyncio
from pathlib import Path

import pytest

from agent.metadata import metadata_service
from rung.agent import agent
from rung.agent.membership.spot_notice import Aws, Gcp, cloud_of, notice_from, notice_to
from rung.events.allocation import AgentLeft, AllocationReleased, DrainRequested
from rung.events.checkpoint import CheckpointStored
from support.agent_rig import SPEAK, Rig

pytestmark = pytest.mark.processes


async def test_aws() -> None:
    """No notice, a token that ran out, then a notice with the time that is left."""
    with metadata_service() as known:
        aws = Aws(known.url)
        assert aws.ask() is None
        known.token = "second"  # noqa: S105 - not a secret
        known.take_away(120)
        notice = await notice_from(aws, every_s=0.01)
    assert notice.reason == "the cloud will terminate this machine"
    assert 110 < notice.seconds <= 120
    assert known.asked.count("PUT /latest/api/token") == 2


async def test_gcp() -> None:
    """The flag turns true."""
    with metadata_service() as known:
        gcp = Gcp(known.url)
        assert gcp.ask() is None
        known.take_away(30)
        assert (await notice_from(gcp, every_s=0.01)).seconds == 30


async def test_the_cloud_that_is_chosen_is_asked() -> None:
    """And where there is none, there is never a notice."""
    with metadata_service() as known:
        known.take_away(30)
        assert (await notice_to("gcp", known.url, 0.01)).seconds == 30
    none = asyncio.create_task(notice_to("off", None, 0.01))
    assert await asyncio.wait([none], timeout=0.05) == (set(), {none})
    none.cancel()


async def test_a_service_that_comes_late() -> None:
    """Nobody there, or nonsense, is asked again."""
    errors: list[str] = []
    with metadata_service() as known:
        known.notice = {"action": "terminate"}
        aws = Aws(known.url)

        def told(error: str) -> None:
            errors.append(error)
            known.take_away(60)

        assert (await notice_from(aws, every_s=0.01, told=told)).seconds > 50
    assert errors == ["'time'"]
    with pytest.raises(OSError, match="refused"):
        Gcp(known.url).ask()


@pytest.mark.parametrize(
    ("file", "words", "kind"),
    [
        ("sys_vendor", "Amazon EC2\n", Aws),
        ("product_name", "Google Compute Engine\n", Gcp),
        ("sys_vendor", "LENOVO\n", type(None)),
    ],
)
def test_the_firmware_says_which_cloud(
    tmp_path: Path, file: str, words: str, kind: type[object]
) -> None:
    """Only a machine of a cloud is asked about its end."""
    (tmp_path / file).write_text(words)
    assert isinstance(cloud_of("auto", dmi=tmp_path), kind)
    assert cloud_of("off", dmi=tmp_path) is None


LEAVES = SPEAK + (
    "hello(); print('here', flush=True)\n"
    "json.loads(channel.makefile().readline())\n"
    "say(type='stored', checkpoint_id=os.environ['RUNG_ALLOCATION'] + '.4', steps_completed=4,"
    " size_bytes=1, files=1, digest='d')\n"
    "say(type='acknowledged')\n"
)


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
async def test_a_notice_drains_the_agent(rig: Rig, cloud: str) -> None:
    """The scheduler is told; once the trials it asked have left, the agent says goodbye."""
    with metadata_service() as known:
        rig.start(spot=cloud, metadata_url=known.url, spot_every_s=0.05)
        allocation = await rig.grant(code=rig.code(train=LEAVES))
        await rig.until_printed("here")
        known.take_away(600)
        await rig.until(DrainRequested)
        await rig.signal(allocation, "preempt")
        await rig.until(AgentLeft)
        ended = await rig.ended_run(allocation)
        await rig.stop()
    assert ended.exit.outcome == "preempted"
    assert [it.steps_completed for it in ended.of(CheckpointStored)] == [4]
    assert len(ended.of(AllocationReleased)) == 1


async def test_without_an_answer_the_agent_leaves_by_itself(rig: Rig) -> None:
    """Should the scheduler say nothing, trials are asked by the agent, before it is too late."""
    with metadata_service() as known:
        rig.start(spot="aws", metadata_url=known.url, spot_every_s=0.05)
        await rig.grant(code=rig.code(train=LEAVES))
        await rig.until_printed("here")
        known.take_away(1)
        await rig.until(AgentLeft)
        await rig.stop()
    assert [it.steps_completed for it in await rig.until(CheckpointStored)] == [4]


async def test_who_is_asked_again_has_the_rest_of_the_notice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the few seconds that a SIGTERM leaves, which may be less than a checkpoint takes."""
    monkeypatch.setattr(agent, "ASKED_BY", 0.001)
    slow = LEAVES.replace("say(type='stored'", "import time; time.sleep(0.3)\nsay(type='stored'")
    with metadata_service() as known:
        rig.start(spot="gcp", metadata_url=known.url, spot_every_s=0.05, leave_s=0.1)
        await rig.grant(code=rig.code(train=slow))
        await rig.until_printed("here")
        known.take_away(30)
        await rig.until(AgentLeft)
        await rig.stop()
    assert [it.steps_completed for it in await rig.until(CheckpointStored)] == [4]
