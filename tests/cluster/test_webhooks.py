"""Replicas of the service on a broker: two share the deliveries, and are killed between."""

import sys
from pathlib import Path

import pytest

from rung.events.trial import TrialClosed
from servers.process import ServerProcess
from support.gateway.client import SECRETS_KEY
from support.ledger.brokers import Ground
from webhooks.installation import Installation
from webhooks.receiver import receiving

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_NAMES = [f"e{number}" for number in range(6)]
_HOOKS = ("w1", "w2", "w3")
EACH = 4


def _replica(url: str, folder: Path, number: int) -> ServerProcess:
    return ServerProcess(
        [
            *(sys.executable, "-m", "rung.webhooks", "--ledger", url, "--retry-max=0.2"),
            *("--allow-network=127.0.0.0/8", "--allow-http"),
        ],
        log=folder / f"webhooks-{number}.log",
        environment={
            "RUNG_OBJECTS": (folder / "objects").as_uri(),
            "RUNG_SECRETS_KEY": SECRETS_KEY,
            "RUNG_KAFKA_SESSION_TIMEOUT_S": "6",
            "RUNG_KAFKA_REBALANCE_TIMEOUT_S": "3",
        },
    )


def _closed(index: int) -> list[TrialClosed]:
    return [
        TrialClosed(
            experiment_id=name,
            trial_id=f"{name}.{index}",
            state="completed",
            reason="",
            restarts=0,
        )
        for name in _NAMES
    ]


async def test_replicas_deliver_all_in_order(ground: Ground, tmp_path: Path) -> None:
    """One after the other is killed and replaced; each webhook gets each event, in order."""
    ledger = await ground.open()
    installation = Installation(ledger, tmp_path / "objects")
    replicas = [_replica(ground.url, tmp_path, number) for number in range(4)]
    try:
        async with receiving() as receiver:
            await installation.submit(*_NAMES)
            for hook in _HOOKS:
                await installation.hook(
                    hook, f"{receiver.url}/{hook}", events=["rung.trial.closed.v1"]
                )
            for index in range(EACH):
                replicas[index].start()
                await installation.tell(*_closed(index))
                count = (index + 1) * len(_NAMES) * len(_HOOKS)
                if index < EACH - 1:
                    await receiver.until(lambda got, some=count - 5: len(got) >= some)  # type: ignore[misc]
                    replicas[index].kill()
            every = EACH * len(_NAMES) * len(_HOOKS)
            await receiver.until(
                lambda got: len({each.headers["webhook-id"] for each in got}) == every
            )
    finally:
        for replica in replicas:
            replica.kill()
        await ledger.close()
    for hook in _HOOKS:
        for name in _NAMES:
            told = dict.fromkeys(
                each.event["subject"]
                for each in receiver.got
                if each.path.endswith(hook) and each.event["subject"].startswith(f"{name}.")
            )
            assert list(told) == [f"{name}.{index}" for index in range(EACH)], hook
