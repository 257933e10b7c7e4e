"""Adding an event with its projection: one module (`notes.py`), and a line in a table for each.

docs/EXTENDING.md says the same, step by step.
"""

from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import World, until
from gateway.notes import ExperimentNoted, Notes, noted
from rung.events import codec, partition_of, topic
from rung.gateway.projections import read_models
from rung.gateway.projections.read_models import ReadModels
from rung.runtime import audit
from rung.searcher.processor import Searcher
from support.gateway.scenario import EXPERIMENT, submitted


@pytest.fixture(autouse=True)
def _lines_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.PAYLOADS, ExperimentNoted.TYPE, ExperimentNoted)
    monkeypatch.setattr(read_models, "PROJECTIONS", [*read_models.PROJECTIONS, Notes])


def _note(text: str) -> Any:
    return ExperimentNoted(experiment_id=EXPERIMENT, text=text)


async def test_the_event_is_folded_by_its_projection_alone(world: World, tmp_path: Path) -> None:
    """It is found live, after a restart, and by its words; the deciders pass over it."""
    async with world.searcher(), world.gateway() as client:
        await world.write(submitted(), _note("smooth curve"))
        await until(
            lambda: client.get("/experiments"),
            lambda it: [each["trial_count"] > 0 for each in it["items"]] == [True],
        )
    for words, found in (("curve", ["smooth curve"]), ("rough", ["too rough"])):
        models = ReadModels(world.ledger, tmp_path)
        await models.start(wait_s=20)
        if words == "rough":
            await world.write(_note("too rough"))
            partition = partition_of(EXPERIMENT, world.ledger.partitions(topic.EXPERIMENTS))
            last = await world.ledger.end(topic.EXPERIMENTS, partition) - 1
            assert await models.reached({(topic.EXPERIMENTS, partition): last}, wait_s=20)
        shown = await models.read(Notes, noted, words)
        assert await models.not_shown() == []
        await models.close()
        assert shown == [(EXPERIMENT, text) for text in found]

    assert (await audit(world.ledger, Searcher())).same
