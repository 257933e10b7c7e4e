"""Determined's Core API, member by member, and what each of Rung's does."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rung import core
from rung.core._distributed import _place_of_tf_config
from rung.core._train import TargetLength
from rung.core.ipc import environment
from rung.core.ipc.environment import Place
from rung.core.ipc.protocol import (
    BestFound,
    BestRequested,
    DeletionRequested,
    FromTrial,
    MetadataSet,
    ProgressReported,
    StatusSet,
)
from servers.process import free_port
from support.agent_end import AgentEnd
from support.ranked import on_agents, ranked

Managed = Callable[..., tuple[AgentEnd, core.Context]]

DETERMINED: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "train": (
        core.TrainContext,
        {
            "set_status": ("status",),
            "set_metadata": ("metadata",),
            "get_metadata": (),
            "report_training_metrics": ("steps_completed", "metrics"),
            "report_validation_metrics": ("steps_completed", "metrics"),
            "report_metrics": ("group", "steps_completed", "metrics"),
            "get_tensorboard_path": (),
            "upload_tensorboard_files": ("selector", "mangler"),
            "report_early_exit": ("reason",),
            "report_progress": ("progress",),
            "get_experiment_best_validation": (),
        },
    ),
    "checkpoint": (
        core.CheckpointContext,
        {
            "upload": ("ckpt_dir", "metadata", "shard", "selector"),
            "download": ("storage_id", "ckpt_dir", "download_mode", "selector"),
            "get_metadata": ("storage_id",),
            "store_path": ("metadata", "shard"),
            "restore_path": ("storage_id",),
            "delete": ("storage_id",),
        },
    ),
    "distributed": (
        core.DistributedContext,
        {
            "from_horovod": ("hvd", "chief_ip"),
            "from_deepspeed": ("chief_ip",),
            "from_torch_distributed": ("chief_ip",),
            "from_tf_config": (),
            "close": (),
            "get_rank": (),
            "get_local_rank": (),
            "get_size": (),
            "get_num_agents": (),
            "gather": ("stuff",),
            "gather_local": ("stuff",),
            "allgather": ("stuff",),
            "allgather_local": ("stuff",),
            "broadcast": ("stuff",),
            "broadcast_local": ("stuff",),
        },
    ),
    "preempt": (
        core.PreemptContext,
        {"should_preempt": ("auto_ack",), "acknowledge_preemption_signal": ()},
    ),
    "searcher": (
        core.SearcherContext,
        {
            "operations": ("searcher_mode", "auto_ack"),
            "acknowledge_out_of_ops": (),
            "get_configured_units": (),
        },
    ),
    "operation": (
        core.SearcherOperation,
        {"report_progress": ("length",), "report_completed": ("searcher_metric",)},
    ),
    "profiler": (
        core.ProfilerContext,
        {"on": ("sampling_interval", "samples_per_report"), "off": ()},
    ),
}
"""Public methods of `determined.core` 0.38 with their parameters, but for these, which Rung does
not have: `batch_metrics` of `report_training_metrics`; `download_mode` and `selector` of
`restore_path`; `Context.alert`; `experimental`."""
MEMBERS = [(part, name) for part, (_, methods) in DETERMINED.items() for name in methods]


@pytest.mark.parametrize(("part", "name"), MEMBERS)
def test_each_member_of_determineds_is_there(part: str, name: str) -> None:
    """By its name, and it takes the same arguments by theirs."""
    owner, methods = DETERMINED[part]
    found = inspect.signature(getattr(owner, name)).parameters
    renamed = {"storage_id": "checkpoint_id"}
    assert all(each in found or renamed.get(each) in found for each in methods[name])


def test_the_context_has_all_parts(managed: Managed) -> None:
    """Under Determined's names."""
    _, ctx = managed(restore=["exp00000.3.1.7"], config={"data": {"url": "x"}}, run=2)
    parts = {"train", "checkpoint", "distributed", "preempt", "searcher", "profiler", "info"}
    assert parts <= set(vars(ctx))
    assert ctx.info.latest_checkpoint == "exp00000.3.1.7"
    assert ctx.info.user_data == {"url": "x"}
    assert (ctx.info.trial.trial_seed, ctx.info.container_rank) == (17, 0)
    ctx.profiler.on()
    ctx.profiler.off()


def test_a_trial_is_described(managed: Managed) -> None:
    """Status, metadata and progress go to the agent; later calls take the place of earlier."""
    agent, ctx = managed()
    assert ctx.train.get_metadata() is None
    ctx.train.set_status("loading")
    assert ctx.train.set_metadata({"rows": (1, 2)}) == {"rows": [1, 2]}
    assert ctx.train.get_metadata() == {"rows": [1, 2]}
    ctx.train.report_progress(0.5)
    ctx.train.report_progress(1)
    ctx.close()
    agent.wait_for_end()
    assert agent.messages == [
        StatusSet("loading"),
        MetadataSet({"rows": [1, 2]}),
        ProgressReported(0.5),
        ProgressReported(1.0),
    ]


def answering(agent: AgentEnd, *answers: float | str | None) -> None:
    """Have the agent answer questions by these, a text being a problem."""
    left = list(answers)

    def answer(message: FromTrial) -> None:
        if isinstance(message, BestRequested):
            found = left.pop(0)
            problem = found if isinstance(found, str) else ""
            value = None if isinstance(found, str) else found
            agent.say(BestFound(message.number + 100, 0.0))  # of no question that is open
            agent.say(BestFound(message.number, value, problem))

    agent.on_message = answer


def test_the_best_validation(managed: Managed) -> None:
    """It is the agent's answer to this question, None before the first one."""
    agent, ctx = managed()
    answering(agent, None, 0.25, 0)
    assert [ctx.train.get_experiment_best_validation() for _ in range(3)] == [None, 0.25, 0.0]
    assert [message.number for message in agent.of(BestRequested)] == [1, 2, 3]


def test_why_there_is_no_best_validation(managed: Managed) -> None:
    """The error names the cause, and what the script can do."""
    agent, ctx = managed()
    answering(agent, "the ledger is away")
    with pytest.raises(core.NoAnswer, match=r"^the ledger is away; .*timeout_s.*NoAnswer"):
        ctx.train.get_experiment_best_validation()


def test_an_agent_that_does_not_answer(managed: Managed) -> None:
    """Such as one of an earlier release: the wait ends; a late answer is that of no question."""
    agent, ctx = managed()
    with pytest.raises(core.NoAnswer, match=r"not answered within 0\.05 s: .*earlier release"):
        ctx.train.get_experiment_best_validation(timeout_s=0.05)
    agent.wait_for(lambda end: len(end.messages) == 1)
    (asked,) = agent.of(BestRequested)
    assert 0 < asked.within_s < 0.05
    agent.say(BestFound(1, 0.5))
    answering(agent, 0.25)
    assert ctx.train.get_experiment_best_validation() == 0.25


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 3601])
def test_how_long_to_wait_for_it(managed: Managed, timeout_s: float) -> None:
    """Never for ever."""
    _, ctx = managed()
    with pytest.raises(ValueError, match=r"timeout_s is .*: give"):
        ctx.train.get_experiment_best_validation(timeout_s)


def test_only_the_chief_asks_for_it(managed: Managed) -> None:
    """As in Determined; the error says how the others get the value."""
    agent, ctx = managed()
    train = core.TrainContext(ctx._connection, TargetLength(agent.spec), reports=False, rank=2)
    with pytest.raises(RuntimeError, match=r"rank 2 .*distributed\.broadcast"):
        train.get_experiment_best_validation()


def test_metadata_of_an_earlier_run(managed: Managed) -> None:
    """They come with the run."""
    _, ctx = managed(run=2, metadata={"rows": 3})
    assert ctx.train.get_metadata() == {"rows": 3}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda train: train.report_progress(1.5), r"between 0 and 1, not 1\.5"),
        (lambda train: train.report_progress(float("nan")), "between 0 and 1, not nan"),
        (lambda train: train.report_progress("half"), "must be a number"),
        (lambda train: train.set_status("x" * 1001), "1001 characters"),
        (lambda train: train.set_metadata({"x": object()}), "cannot be encoded as JSON"),
        (lambda train: train.set_metadata({"x": "y" * 70_000}), "keep larger ones in a file"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    managed: Managed, call: Callable[[core.TrainContext], Any], message: str
) -> None:
    """At the call, and the run goes on."""
    agent, ctx = managed()
    with pytest.raises(core.ReportRefused, match=message):
        call(ctx.train)
    ctx.close()
    agent.wait_for_end()
    assert agent.messages == []


def test_a_folder_is_uploaded_and_downloaded(managed: Managed, tmp_path: Path) -> None:
    """What the selectors choose, with the metadata."""
    _, ctx = managed()
    (tmp_path / "out" / "deep").mkdir(parents=True)
    for name in ("model", "deep/log", "junk"):
        (tmp_path / "out" / name).write_text(name)
    stored = ctx.checkpoint.upload(
        tmp_path / "out", {"steps_completed": 4}, selector=lambda name: name != "junk"
    )
    assert ctx.checkpoint.get_metadata(stored) == {"steps_completed": 4}
    for mode in core.DownloadMode:
        target = tmp_path / mode.value
        ctx.checkpoint.download(stored, target, mode)
        assert (target / "deep" / "log").read_text() == "deep/log"
        assert sorted(it.name for it in target.iterdir()) == ["deep", "model"]
    some = tmp_path / "some"
    ctx.checkpoint.download(stored, some, selector=lambda name: name == "model")
    assert [it.name for it in some.iterdir()] == ["model"]
    with pytest.raises(ValueError, match="give the folder"):
        ctx.checkpoint.upload(None)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ctx.checkpoint.upload(tmp_path / "missing")


def test_a_checkpoint_is_deleted(
    managed: Managed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under Rung the agent is asked to; by hand it is gone at once."""
    agent, ctx = managed()
    ctx.checkpoint.delete("exp00000.3.1.4")
    ctx.close()
    agent.wait_for_end()
    assert agent.messages == [DeletionRequested("exp00000.3.1.4")]

    monkeypatch.delenv("RUNG_ALLOCATION")
    with core.init(storage=tmp_path / "kept") as own:
        with own.checkpoint.store_path() as (folder, checkpoint_id):
            (folder / "model").write_text("x")
        assert list((tmp_path / "kept").rglob("model"))
        own.checkpoint.delete(checkpoint_id)
        assert not list((tmp_path / "kept").rglob("model"))


def test_tensorboard_files_are_in_checkpoints(managed: Managed, tmp_path: Path) -> None:
    """All of the folder, or what was chosen since, under the names that were chosen."""
    _, ctx = managed()
    folder = ctx.train.get_tensorboard_path()
    (folder / "deep").mkdir()
    (folder / "deep" / "events.1").write_text("a")
    (folder / "trace").write_text("b")

    def held(step: int) -> dict[str, str]:
        with ctx.checkpoint.store_path_async(steps_completed=step) as (path, stored):
            (path / "model").write_text("m")
        ctx.checkpoint.wait()
        ctx.checkpoint.download(stored, tmp_path / str(step), selector=lambda it: it != "model")
        below = tmp_path / str(step) / "tensorboard"
        return {
            it.relative_to(below).as_posix(): it.read_text()
            for it in below.rglob("*")
            if it.is_file()
        }

    assert held(1) == {"deep/events.1": "a", "trace": "b"}
    ctx.train.upload_tensorboard_files(
        lambda path: path.name != "trace", lambda name, rank: name.with_suffix(f".rank{rank}")
    )
    assert held(2) == {"deep/events.rank0": "a"}
    with pytest.raises(ValueError, match="must stay in its folder"):
        ctx.train.upload_tensorboard_files(mangler=lambda name, _: Path("..") / name)


def test_tensorboard_files_outlive_a_run(
    managed: Managed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next run of the trial has what the checkpoint has of the folder."""
    agent, ctx = managed()
    (ctx.train.get_tensorboard_path() / "events").write_text("a")
    with ctx.checkpoint.store_path(steps_completed=1) as (path, stored):
        (path / "model").write_text("m")
    ctx.close()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    agent.spec = agent.spec.__class__(
        **{name: getattr(agent.spec, name) for name in agent.spec.__struct_fields__}
        | {"run": 2, "restore": [stored]}
    )
    monkeypatch.setenv(environment.ALLOCATION_VARIABLE, "exp00000.3.2")
    with core.init() as again:
        assert again.checkpoint.download_latest() == stored
        assert (again.train.get_tensorboard_path() / "events").read_text() == "a"


def test_the_operation_of_a_search_is_the_length(managed: Managed) -> None:
    """It is reported as complete by a validation at the length, once."""
    agent, ctx = managed(length=8)
    assert ctx.searcher.get_configured_units() is core.Unit.BATCHES
    for operation in ctx.searcher.operations():
        assert operation.length == 8
        operation.report_progress(2)
        operation.report_completed(0.25)
        operation.report_completed(0.25)
    assert list(ctx.searcher.operations()) == []
    assert ctx.preempt.should_preempt()
    ctx.close()
    agent.wait_for_end()
    assert agent.reports("validation") == [(8, {"loss": 0.25, "batches": 8.0})]
    assert ProgressReported(0.25) in agent.messages


def test_places_by_determineds_getters() -> None:
    """Each says what the attribute does."""

    def places(ranks: core.DistributedContext) -> tuple[int, ...]:
        return (
            ranks.get_rank(),
            ranks.get_local_rank(),
            ranks.get_size(),
            ranks.get_local_size(),
            ranks.get_cross_rank(),
            ranks.get_num_agents(),
        )

    assert ranked(on_agents(2, 1), places) == [
        (0, 0, 3, 2, 0, 2),
        (1, 1, 3, 2, 0, 2),
        (2, 0, 3, 1, 1, 2),
    ]


class Horovod:
    """Two ranks of Horovod in threads."""

    def __init__(self, rank: int, box: list[Any]) -> None:
        self._rank = rank
        self._box = box

    def __getattr__(self, name: str) -> Callable[[], int]:
        """Return where this rank is."""
        known = {"rank": self._rank, "size": 2, "local_rank": self._rank, "local_size": 2}
        return lambda: known.get(name, {"cross_rank": 0, "cross_size": 1}.get(name, 0))

    def broadcast_object(self, value: Any, root: int) -> Any:
        """Give what rank 0 gave."""
        if self._rank == root:
            self._box.append(value)
        while not self._box:
            pass
        return self._box[0]


def test_ranks_of_horovod_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, their framework tells them where the chief is."""
    monkeypatch.delenv(environment.ALLOCATION_VARIABLE, raising=False)
    box = list[Any]()

    def work(rank: int) -> list[int]:
        with core.DistributedContext.from_horovod(Horovod(rank, box)) as ranks:
            return ranks.allgather(ranks.rank)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [[0, 1], [0, 1]]


TORCH = """
import sys, torch.distributed as dist
from rung import core
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
with core.init(distributed=core.DistributedContext.from_torch_distributed()) as ctx:
    print(ctx.distributed.allgather(ctx.distributed.local_rank))
dist.destroy_process_group()
"""


def test_ranks_of_torchrun_find_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand; `core.init` takes them."""
    monkeypatch.delenv(environment.ALLOCATION_VARIABLE, raising=False)
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TORCH, str(rank), port],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in started] == ["[0, 1]\n"] * 2


def test_tf_config_says_where_a_process_is() -> None:
    """Its chief listens at the port after TensorFlow's; what is no such text is refused."""
    cluster = '{"chief": ["a:1"], "worker": ["a:2", "b:3"]}'
    text = f'{{"cluster": {cluster}, "task": {{"type": "%s", "index": %d}}}}'
    assert _place_of_tf_config(text % ("chief", 0)) == (
        Place(rank=0, size=3, local_rank=0, local_size=2, cross_rank=0, cross_size=2),
        "a:2",
    )
    place, _ = _place_of_tf_config(text % ("worker", 1))
    assert place == Place(rank=2, size=3, local_size=1, cross_rank=1, cross_size=2)
    with pytest.raises(core.RanksApart, match="TF_CONFIG must have"):
        _place_of_tf_config("")
