"""One training over any number of slots: the same curve, and checkpoints that fit any number."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from rung.events.checkpoint import CheckpointStored
from rung.events.trial import TrialRestored
from rung.storage import FolderStore
from support.agent_rig import Ended, Rig

SCRIPT = (Path(__file__).parents[1] / "support" / "trials" / "shared.py").read_text()
CONFIG: dict[str, Any] = {
    "searcher": {"metric": "loss"},
    "scheduling_unit": 1,
    "min_validation_period": {"batches": 5},
    "min_checkpoint_period": {"batches": 2},
}
FSDP: dict[str, Any] = {"distributed": {"strategy": "fsdp"}}

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """Give an agent with four slots whose runs start with torch imported."""
    rig = Rig(tmp_path_factory.mktemp("warm"))
    rig.start(cold=False)
    try:
        yield rig
    finally:
        await rig.close()


async def train(rig: Rig, slots: int, restore: list[str] | None = None, **config: Any) -> Ended:
    """Train a run of 10 steps, or what is left of it."""
    return await rig.end_of(
        await rig.grant(
            code=rig.code(train=SCRIPT),
            slots=list(range(slots)),
            restore=restore or [],
            **(CONFIG | config),
        )
    )


def curve(*runs: Ended) -> dict[tuple[str, int], dict[str, Any]]:
    """Return what was reported, by kind and step; what is of the machine differs at each run."""
    rows = (row for run in runs for row in run.rows)
    return {(kind, step): values for kind, step, values in rows if kind != "system"}


def assert_same(
    found: dict[tuple[str, int], dict[str, Any]], wanted: dict[tuple[str, int], dict[str, Any]]
) -> None:
    """Hold two curves against each other, to within the error of sums in another order."""
    assert found.keys() == wanted.keys()
    for moment, values in wanted.items():
        assert found[moment] == pytest.approx(values, rel=1e-5), moment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(warm: Rig) -> dict[tuple[str, int], dict[str, Any]]:
    """The curve of one slot."""
    ended = await train(warm, 1)
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    return curve(ended)


@pytest.mark.parametrize(
    ("slots", "more"),
    [
        (2, {}),
        (3, {}),
        (4, {}),
        (2, FSDP),
        (2, {"data": {"per_slot": True}}),
        (2, {"data": {"frozen": True}}),
        (2, FSDP | {"data": {"frozen": True}}),
    ],
)
async def test_any_number_of_slots_gives_the_same_curve(
    warm: Rig, alone: dict[tuple[str, int], dict[str, Any]], slots: int, more: dict[str, Any]
) -> None:
    """Losses, validations and counts of records are those of one slot, last batches included."""
    ended = await train(warm, slots, **more)
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    assert alone["validation", 10]["records"] == 74
    assert_same(curve(ended), alone)


@pytest.mark.parametrize("more", [{}, FSDP])
async def test_ranks_checkpoint_together_by_the_chief_s_clock(
    warm: Rig, alone: dict[tuple[str, int], dict[str, Any]], more: dict[str, Any]
) -> None:
    """Where no period is set: one rank has the time, all store, and the curve is the same."""
    config = more | {"min_checkpoint_period": None, "checkpoint_policy": "none"}
    ended = await train(warm, 3, data={"hasty": True}, **config)
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    assert_same(curve(ended), alone)
    stored = [event.steps_completed for event in ended.of(CheckpointStored)]
    assert len(stored) > 1
    assert stored == sorted(set(stored))


@pytest.mark.parametrize("slots", [2, 4])
async def test_a_step_costs_one_control_message(warm: Rig, slots: int) -> None:
    """Whether to leave, to checkpoint, and what is stored go to all ranks in one message.

    So it is in steps that end no period; the checkpoint of the first is stored behind them.
    """
    periods: dict[str, Any] = {
        "scheduling_unit": 20,
        "min_validation_period": {"batches": 20},
        "min_checkpoint_period": None,
    }
    data = {"counted": True}
    ended = await train(warm, slots, data=data, checkpoint_policy="none", **periods)
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    found = re.findall(r"before step (\d+): (\d+)", "\n".join(ended.printed()))
    assert [(int(step), int(calls)) for step, calls in found][1:] == [
        (step, 1) for step in range(2, 11)
    ]


async def test_a_stream_is_shared_too(warm: Rig) -> None:
    """An IterableDataset gives the same curve on two slots and on three."""
    wanted = curve(await train(warm, 1, data={"stream": True}))
    for slots in (2, 3):
        ended = await train(warm, slots, data={"stream": True})
        assert ended.exit.outcome == "finished", ended.printed("stderr")
        assert_same(curve(ended), wanted)


async def test_parameters_are_frozen_and_unfrozen_on_the_way(warm: Rig) -> None:
    """Of what is trained at a step, all ranks have the mean gradient."""
    wanted = curve(await train(warm, 1, data={"thaws": True}))
    ended = await train(warm, 2, data={"thaws": True})
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    assert_same(curve(ended), wanted)


async def test_steps_over_several_batches(warm: Rig) -> None:
    """With gradients gathered over two batches the curve is that of one slot."""
    more: dict[str, Any] = {"optimizations": {"aggregation_frequency": 2}}
    wanted = curve(await train(warm, 1, **more))
    assert_same(curve(await train(warm, 2, **more)), wanted)


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        (2, 1, {}),
        (1, 2, {}),
        (2, 4, {}),
        (4, 2, FSDP),
        (2, 1, FSDP),
        (1, 2, FSDP),
        (2, 3, FSDP | {"optimizations": {"aggregation_frequency": 3}}),
        (3, 2, {"data": {"stream": True}}),
        (2, 1, {"data": {"stream": True}}),
        (1, 2, {"data": {"stream": True}}),
        (2, 2, {"optimizations": {"aggregation_frequency": 3}}),
    ],
)
async def test_a_checkpoint_of_n_slots_resumes_on_m(
    warm: Rig, before: int, after: int, more: dict[str, Any]
) -> None:
    """Killed on `before` slots and continued on `after`, the curve is that of one slot."""
    wanted = curve(await train(warm, 1, **more))
    data = {**more.get("data", {}), "die_at": 8}
    first = await train(warm, before, **(more | {"data": data}))
    victim = "rank 1: " if before > 1 else ""
    assert first.exit.message.startswith(f"{victim}killed by signal 9")
    stored = [each.checkpoint_id for each in first.of(CheckpointStored)][::-1]
    second = await train(warm, after, stored, **more)
    assert second.exit.outcome == "finished", second.printed("stderr")
    newest = first.of(CheckpointStored)[-1].steps_completed
    assert newest in {5, 6}, "the one of step 6 may still be on its way"
    assert [each.steps_completed for each in second.of(TrialRestored)] == [newest]
    assert_same(curve(first, second), wanted)


@pytest.mark.parametrize(
    ("before", "after", "more"), [(2, 2, {}), (2, 1, {}), (1, 2, {}), (2, 1, FSDP)]
)
async def test_what_a_context_keeps_resumes_on_any_number_of_slots(
    warm: Rig, before: int, after: int, more: dict[str, Any]
) -> None:
    """An average of the weights and a frozen table go along; all ranks hear what is stored."""
    kept: dict[str, Any] = {"data": {"kept": True}}
    first = await train(warm, before, data={"kept": True, "die_at": 8}, **more)
    assert "killed by signal 9" in first.exit.message
    checkpoints = first.of(CheckpointStored)
    assert {each.files for each in checkpoints} == {7 if more is FSDP else 4}
    stored = [each.checkpoint_id for each in checkpoints][::-1]
    second = await train(warm, after, stored, **more, **kept)
    assert second.exit.outcome == "finished", second.printed("stderr")
    assert_same(curve(first, second), curve(await train(warm, before, **more, **kept)))


@pytest.mark.parametrize(("first", "then"), [({}, FSDP), (FSDP, {})])
async def test_a_checkpoint_resumes_with_another_strategy(
    warm: Rig, first: dict[str, Any], then: dict[str, Any]
) -> None:
    """Whole tensors are taken in parts, and parts as whole tensors."""
    wanted = curve(await train(warm, 1))
    before = await train(warm, 2, data={"die_at": 8}, **first)
    stored = [each.checkpoint_id for each in before.of(CheckpointStored)][::-1]
    after = await train(warm, 2, stored, **then)
    assert after.exit.outcome == "finished", after.printed("stderr")
    assert [each.checkpoint_id for each in after.of(TrialRestored)] == stored[:1]
    assert_same(curve(before, after), wanted)


@pytest.mark.parametrize(("slots", "more"), [(2, {}), (4, {}), (2, FSDP), (4, FSDP)])
async def test_on_as_many_slots_it_resumes_bit_for_bit(
    warm: Rig, slots: int, more: dict[str, Any]
) -> None:
    """Each rank takes up its own generators: with dropout the curve is the unbroken one.

    And parts of gradients are added up in the order of before, which shows with three and more.
    """
    data = {"noise": True, "wide": True}
    wanted = curve(await train(warm, slots, data=data, **more))
    first = await train(warm, slots, data=data | {"die_at": 8}, **more)
    stored = [each.checkpoint_id for each in first.of(CheckpointStored)][::-1]
    second = await train(warm, slots, stored, data=data, **more)
    assert curve(first, second) == wanted


async def test_no_rank_ever_holds_a_whole_tensor(warm: Rig) -> None:
    """Of sharded ones: neither when a checkpoint is written nor when training goes on from it."""
    first = await train(warm, 3, data={"parts": True, "die_at": 8}, **FSDP)
    assert "killed by signal 9" in first.exit.message
    stored = [each.checkpoint_id for each in first.of(CheckpointStored)][::-1]
    second = await train(warm, 2, stored, data={"parts": True}, **FSDP)
    assert second.exit.outcome == "finished", second.printed("stderr")
    assert [each.checkpoint_id for each in second.of(TrialRestored)] == stored[:1]


async def test_torchs_own_tools_open_what_several_ranks_wrote(warm: Rig, tmp_path: Path) -> None:
    """They make one file of it; and what is not trained was written once, by each rank."""
    ended = await train(warm, 2, data={"kept": True}, **FSDP)
    names = [each.checkpoint_id for each in ended.of(CheckpointStored)]
    folders = [folder_of(warm, name) / "sharded" for name in names]
    dcp_to_torch_save(folders[-1], tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    shapes = {name: list(value.shape) for name, value in whole["model"].items()}
    assert shapes == {
        "0.weight": [16, 3],
        "0.bias": [16],
        "3.weight": [1, 16],
        "3.bias": [1],
        "table": [1 << 18],
    }
    assert whole["model"]["table"].equal(torch.ones(1 << 18))
    assert (
        whole["optimizers"][0]["state"]["1"]["exp_avg"].shape == whole["model"]["0.weight"].shape
    )
    assert whole["kept"]["ema"].keys() == whole["model"].keys()
    for rank in range(2):
        assert len({(it / f"__{rank}_1.distcp").stat().st_ino for it in folders}) == 1


async def test_a_callback_sees_what_the_chief_writes(warm: Rig) -> None:
    """Of all ranks; what it leaves there is stored, and what others leave is thrown away."""
    ended = await train(warm, 2, data={"look": True}, **FSDP)
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    files = ["sharded/.metadata", "sharded/__0_0.distcp", "trainer.json", "training.pt"]
    seen = {text for text in ended.printed() if text.startswith("seen")}
    assert seen == {"seen", " ".join(["seen", *files])}
    newest = folder_of(warm, ended.of(CheckpointStored)[-1].checkpoint_id)
    stored = {it.relative_to(newest).as_posix() for it in newest.rglob("*") if it.is_file()}
    assert stored == {*files, "sharded/__1_0.distcp", "note", "manifest.json"}


def folder_of(rig: Rig, checkpoint_id: str) -> Path:
    """Return where a checkpoint lies."""
    assert isinstance(rig.store, FolderStore)
    return rig.store.root / "checkpoints" / checkpoint_id.partition(".")[0] / checkpoint_id


async def test_a_slow_rank_is_named(warm: Rig) -> None:
    """The log says which rank keeps the others waiting, and by how much."""
    ended = await train(warm, 2, data={"drags": 0.05})
    said = [text for text in ended.printed("stdout") if "is slow" in text]
    assert len(said) == 10
    assert all("rank 1 is slow: 0.050 s" in text and "others 0.000 s" in text for text in said)


@pytest.mark.parametrize(
    ("slots", "more", "message"),
    [
        (2, {"distributed": {"launcher": "horovod"}}, "use `launcher: torch`"),
    ],
)
async def test_what_does_not_go_together_is_refused(
    warm: Rig, slots: int, more: dict[str, Any], message: str
) -> None:
    """A run that cannot be shared fails at once and says what to change."""
    ended = await train(warm, slots, **more)
    assert ended.exit.outcome == "failed"
    assert message in ended.exit.message
