"""Trials of a framework, run after run, against an agent's end; and what must hold for each."""

import contextlib
import importlib.util
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import pytest

from rung.agent.rendezvous.framework_env import network_of, places
from rung.agent.rendezvous.rendezvous import Ports, local_info, options_of
from rung.core.ipc.protocol import Restored, Stored
from rung.events.allocation import Share
from support.agent_end import AgentEnd, agent_end
from support.fuse import before

PUBLIC: Final[Mapping[str, Any]] = {"reproducibility": {"exact": False}}
"""The setting of a trial that uses public interfaces only."""
DETERMINISTIC: Final[Mapping[str, Any]] = {"reproducibility": {"deterministic": True}}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests whose framework is not installed, and says so.

    A folder of tests of the same name does not count as the package.
    """
    missing = [name for name in packages if not installed(name)]
    reason = f"not installed: {', '.join(missing)} (pip install -e '.[frameworks,examples]')"
    return pytest.mark.skipif(bool(missing), reason=reason)


def installed(package: str) -> bool:
    """Return whether a package is there."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


class Runs:
    """One trial in a folder of its own: run after run, with what they said and left."""

    def __init__(self, parent: "subprocess.Popen[str]", agent: AgentEnd, folder: Path) -> None:
        self._parent = parent
        self._folder = folder
        self._number = 0
        self._slots = 1
        self.agent = agent

    def train(
        self,
        moment: int | None = None,
        *,
        length: int | None = None,
        slots: int = 1,
        victim: int = 0,
        **order: Any,
    ) -> int:
        """Train the next run and return the exit code of the rank that failed first, or 0.

        Args:
            moment: at which the victim is killed.
            length: of the run, if it is another than before.
            slots: how many ranks train.
            victim: which of them is killed.
            order: what the trial's module looks at.
        """
        stored = [message.checkpoint_id for message in self.agent.of(Stored)]
        self._number += 1
        number, connections = self._number, len(self.agent.hellos) + slots
        changes: dict[str, Any] = {"run": number, "restore": stored[::-1]}
        if length is not None:
            changes["length"] = length
        self.agent.spec = msgspec.structs.replace(self.agent.spec, **changes)
        with contextlib.closing(Ports(slots)) as ports:
            own = environments(self.agent.spec.config, ports, slots)
            full = {
                "environments": [self.agent.environment | each for each in own],
                "victim": victim,
                "folder": str(self._folder),
                "moment": moment,
                **order,
            }
            assert self._parent.stdin is not None
            assert self._parent.stdout is not None
            self._parent.stdin.write(json.dumps(full) + "\n")
            self._parent.stdin.flush()
            try:
                code = int(self._parent.stdout.readline())
            except BaseException:  # a test that took too long leaves nothing to the next one
                self._abandon()
                raise
        self.agent.wait_for_end(min(connections, len(self.agent.hellos)))
        self._slots = slots
        return code

    def _abandon(self) -> None:
        """Kill the run that is on order, and read what becomes of it."""
        answers = self._parent.stdout
        assert answers is not None
        while not select.select([answers], [], [], 0.1)[0]:
            for child in psutil.Process(self._parent.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        answers.readline()

    def refusal(self) -> str:
        """Return why the run failed, in the words of all ranks that said so."""
        said = [json.loads(file.read_text()) for file in self._folder.glob("result-*.json")]
        return "\n".join(str(each["error"]) for each in said if "error" in each)

    def curve(self, kind: str, tolerance: float = 0.0) -> dict[int, dict[str, Any]]:
        """Return the metrics by step; a step reported twice said the same twice."""
        found: dict[int, dict[str, Any]] = {}
        for step, values in self.agent.reports(kind):
            said = pytest.approx(values, rel=tolerance, abs=tolerance) if tolerance else values
            assert found.setdefault(step, values) == said, step
        return found

    def results(self) -> list[dict[str, Any]]:
        """Return what each rank of the last run, which finished, made of the trial."""
        files = [self._folder / f"result-{rank}.json" for rank in range(self._slots)]
        return [json.loads(file.read_text()) for file in files]

    def outcome(self, tolerance: float = 0.0) -> dict[str, Any]:
        """Return what the finished trial is: its curves and what it left."""
        result, *others = self.results()
        return {
            "result": result,
            "others": others,
            "training": self.curve("training", tolerance),
            "validation": self.curve("validation", tolerance),
        }


def environments(config: Mapping[str, Any], ports: Ports, slots: int) -> list[dict[str, str]]:
    """Return what the agent sets for each rank, beside what it sets for all.

    Args:
        config: of the experiment, whose section `distributed` names the launcher.
        ports: where the ranks meet.
        slots: how many ranks there are.
    """
    want = options_of(config)
    meeting = local_info(ports) if slots > 1 or want.explicit else None
    share = Share(agent_id="agent-1", incarnation=1, slots=list(range(slots)))
    return [
        place.variables() | network_of(want, place, meeting, None)
        for place in places([share], 0, want.launcher)
    ]


@contextlib.contextmanager
def parent(module: str, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that has a framework imported and forks trials."""
    path = [str(Path(__file__).parents[1]), *sys.path]
    with subprocess.Popen(
        [sys.executable, "-m", "support.framework_runner", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | QUIET | {"PYTHONPATH": os.pathsep.join(path)} | dict(environment),
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@contextlib.contextmanager
def trial(process: "subprocess.Popen[str]", folder: Path, **fields: Any) -> Iterator[Runs]:
    """Yield the runs of a trial."""
    with agent_end(folder, **fields) as agent:
        yield Runs(process, agent, folder)


def configured(fields: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the fields of a run with settings of the experiment file."""
    return dict(fields) | {"config": fields["config"] | settings}


def killed_everywhere(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    moments: Sequence[int],
    **order: Any,
) -> dict[str, Any]:
    """Kill a trial at each of some moments, go on, and hold it to the one that nobody killed."""
    with trial(process, folder / "unbroken", **fields) as runs:
        assert runs.train(**order) == 0
        expected = runs.outcome()
    for moment in moments:
        with trial(process, folder / str(moment), **fields) as runs:
            assert runs.train(moment, **order) == -signal.SIGKILL, moment
            assert runs.train(**order) == 0, moment
            assert runs.outcome() == expected, moment
    return expected


def killed_again_and_again(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    moments: Sequence[int],
    slots: int = 1,
    **order: Any,
) -> dict[str, Any]:
    """Kill one trial at each of some moments, and hold it to the one that nobody killed.

    Each run goes on from what the one before it left, so the moments ascend. Of several ranks each
    is killed in its turn, rank 1 first.
    """
    with trial(process, folder / "unbroken", **fields) as runs:
        assert runs.train(slots=slots, **order) == 0
        expected = runs.outcome()
    with trial(process, folder / "killed", **fields) as runs:
        for number, moment in enumerate(moments, 1):
            code = runs.train(moment, slots=slots, victim=number % slots, **order)
            assert code == -signal.SIGKILL, moment
        assert runs.train(slots=slots, **order) == 0
        assert runs.outcome() == expected
    return expected


def killed_behind_its_change(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    change: str,
    steps: range,
) -> None:
    """Kill a trial behind its change, and compare its outcome with that of a trial not killed.

    Args:
        process: a parent.
        folder: for the trials.
        fields: of their runs.
        change: what they change.
        steps: behind the change, of which one is drawn.
    """
    step = random.Random(change).choice(steps)  # noqa: S311 - a test's own
    killed_again_and_again(process, folder, fields, [before(step)], change=change)


def refused_for_its_change(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    change: str,
    *,
    said: str,
    step: int,
) -> None:
    """Hold a trial to the refusal of a change at the first checkpoint that would not have it.

    Args:
        process: a parent.
        folder: for the trial.
        fields: of its run, which is checkpointed at each step.
        change: what it changes.
        said: a part of the refusal.
        step: before which it does.
    """
    with trial(process, folder, **fields) as runs:
        assert runs.train(change=change) == 1
        assert said in runs.refusal()
        assert runs.agent.of(Stored)[-1].steps_completed == step - 1


def resumed_by_public_interfaces(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    moments: Sequence[int],
    slots: int = 1,
    **order: Any,
) -> dict[str, list[int]]:
    """Kill a trial that need not resume exactly, and return the steps that it reported, by kind.

    Each run goes on from what the one before it left. What was done before a checkpoint is not
    done again. Of several ranks the chief is killed, which waits for the checkpoint.
    """
    with trial(process, folder, **configured(fields, **PUBLIC)) as runs:
        for moment in moments:
            assert runs.train(moment, slots=slots, **order) == -signal.SIGKILL, moment
            stored = runs.agent.of(Stored)[-1].steps_completed
            said = len(runs.agent.reports("training"))
        assert runs.train(slots=slots, **order) == 0
        assert runs.agent.of(Restored)
        again = [step for step, _ in runs.agent.reports("training")][said:]
        assert again == sorted(set(again))
        assert again[0] == stored + 1
        return {
            kind: sorted({step for step, _ in runs.agent.reports(kind)})
            for kind in ("training", "validation")
        }


def refused_where_untested(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    package: str,
    **order: Any,
) -> None:
    """Hold a run with an untested version to one sentence; without the add-on it trains.

    Args:
        process: a parent.
        folder: for the trials.
        fields: of their runs.
        package: of the framework.
        order: what the trial's module looks at.
    """
    versions = {package: "99.0.0"}
    with trial(process, folder / "exact", **fields) as runs:
        assert runs.train(**order, versions=versions) == 1
        assert "is tested with" in runs.refusal()
        assert "and this is 99.0.0, where a resumed run" in runs.refusal()
        assert "\n" not in runs.refusal()
        assert runs.agent.reports("training") == []
    with trial(process, folder / "public", **configured(fields, **PUBLIC)) as runs:
        assert runs.train(**order, versions=versions) == 0
        assert runs.agent.reports("training")


def goes_on_by_itself(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    moments: Sequence[int],
    **order: Any,
) -> None:
    """Kill a trial whose experiment file sets no period, and hold it to the one nobody killed.

    Its checkpoints come when the clock wants them, here as often as they can.
    """
    unset = configured(fields, min_checkpoint_period=None)
    with trial(process, folder / "unbroken", **unset) as runs:
        assert runs.train(**order) == 0
        expected = runs.outcome()
    for moment in moments:
        with trial(process, folder / str(moment), **unset) as runs:
            assert runs.train(moment, **order, hasty=True) == -signal.SIGKILL, moment
            assert runs.agent.of(Stored), moment
            assert runs.train(**order, hasty=True) == 0, moment
            assert runs.agent.of(Restored), moment
            assert runs.outcome() == expected, moment


def assert_same(
    found: Mapping[str, Any], wanted: Mapping[str, Any], own: Container[str] = ()
) -> None:
    """Hold the curves of two trials together, to within the error of sums in another order.

    Args:
        found: the outcome of one.
        wanted: that of the other.
        own: metrics that each rank has of its own, which are not looked at.
    """
    for kind in ("training", "validation"):
        assert found[kind].keys() == wanted[kind].keys()
        for step, values in wanted[kind].items():
            theirs, ours = (
                {name: value for name, value in each.items() if name not in own}
                for each in (found[kind][step], values)
            )
            assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6), (kind, step)


def killed_in_a_rank(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    kills: Sequence[tuple[int, int]],
    slots: int = 2,
    **order: Any,
) -> dict[str, Any]:
    """Kill one rank at a moment, go on, and hold the trial to the one nobody killed.

    Args:
        process: a parent.
        folder: for the trials.
        fields: of their runs.
        kills: which rank is killed, and at which moment; each kill in a trial of its own.
        slots: how many ranks there are.
        order: what the trial's module looks at.
    """
    with trial(process, folder / "unbroken", **fields) as runs:
        assert runs.train(slots=slots, **order) == 0
        expected = runs.outcome()
    for victim, moment in kills:
        with trial(process, folder / f"{victim}-{moment}", **fields) as runs:
            code = runs.train(moment, slots=slots, victim=victim, **order)
            assert code == -signal.SIGKILL, (victim, moment)
            assert runs.train(slots=slots, **order) == 0, (victim, moment)
            assert runs.outcome() == expected, (victim, moment)
    return expected
