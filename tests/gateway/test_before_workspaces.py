"""A ledger of the release before workspaces: what it has belongs to one administrator."""

import json
from pathlib import Path
from typing import Final

from gateway.conftest import World
from rung.events import decode
from rung.events.experiment import ExperimentSubmitted
from rung.ledger import Draft
from rung.runtime import audit
from rung.searcher.processor import Searcher

_RECORDED: Final = Path(__file__).parent / "ledgers/before-workspaces.jsonl"
"""Topic, key and value of each record, partition by partition, as that release wrote them."""


async def test_what_was_there_is_in_the_default_workspace_of_the_administrator(
    world: World,
) -> None:
    """Also what a file put into a workspace, which had no effect then; the audit is clean."""
    records = [json.loads(line) for line in _RECORDED.read_text().splitlines()]
    for each in records:
        draft = Draft(each["topic"], each["key"], each["value"].encode())
        await world.ledger.append([draft])
    facts = [decode(each["value"].encode()).data for each in records]
    submitted = [it for it in facts if isinstance(it, ExperimentSubmitted)]
    assert {it.config["workspace"] for it in submitted} == {"Uncategorized", "vision"}

    async with world.gateway() as client:
        listed = await client.get("/experiments?filter=workspace:default project:default owner:me")
        assert {it["id"] for it in listed["items"]} == {it.experiment_id for it in submitted}
        for it in listed["items"]:
            assert (it["workspace"], it["project"]) == ("default", "default")
            assert (it["owner"], it["owner_id"]) == ("admin", "admin")
        described = await client.get("/experiments?label=before&workspace=default")
        assert len(described["items"]) == 1
        # A key that was used before the upgrade still stands for what it was used for.
        paused = described["items"][0]["id"]
        key = {"Idempotency-Key": "third"}
        again = await client.call("POST", f"/experiments/{paused}/pause", headers=dict(key))
        other = await client.call("POST", f"/experiments/{paused}/kill", headers=dict(key))
        assert (again.status, other.status, other.kind) == (202, 422, "idempotency-key-reused")
    verdict = await audit(world.ledger, Searcher())
    assert verdict.same
    assert verdict.decisions > 10
