"""What a process is launched with."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rung.agent.forkserver.messages import Command
from rung.agent.run import process_spec
from rung.agent.run.process_spec import (
    Identity,
    InvalidEntrypoint,
    command_of,
    launch_of,
    search_path,
    variables_of,
)
from rung.agent.slots import Device
from rung.core.ipc.environment import Place
from rung.events.trial import RunSpec

GPUS = [Device(id=i, kind="cuda", name="H", visible_as=f"GPU-{i}") for i in range(4)]
CORES = [Device(id=i, kind="cpu", name="core", visible_as="") for i in range(4)]
SPEC = RunSpec(
    experiment_id="exp00001",
    trial_id="exp00001.0",
    trial_index=0,
    run=1,
    hparams={},
    seed=7,
    length=10,
    time_metric="batches",
    restore=[],
    code_digest=None,
    config={"entrypoint": "python3 train.py"},
)


@pytest.mark.parametrize(
    ("held", "slots", "network", "visible"),
    [
        ([1, 3], GPUS, {}, "GPU-1,GPU-3"),
        ([1, 3], GPUS, {"TF_CONFIG": "{}"}, "GPU-1"),
        ([], GPUS, {}, ""),
        ([1], CORES, {}, None),
        ([], CORES, {}, None),
    ],
)
def test_a_run_sees_the_devices_that_it_holds(
    held: list[int], slots: list[Device], network: dict[str, str], visible: str | None
) -> None:
    """Where there are GPUs each run sees its own, and one without slots sees none."""
    identity = Identity("e.0.1", "e.0.1", "token", Place(), Path("/s"))
    launch = launch_of(SPEC, identity, held, slots, Path("/w"), network)
    assert launch.environment.get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        ("python3 train.py", Command("script", ["train.py"])),
        ("python -u train.py --a 'b c'", Command("script", ["train.py", "--a", "b c"])),
        ("python3.11 sub/train.py", Command("script", ["sub/train.py"])),
        (["python", "train.py", "$X"], Command("script", ["train.py", "$X"])),
        ([sys.executable, "train.py"], Command("script", ["train.py"])),
        ("python3 -m pkg.train -x", Command("module", ["pkg.train", "-x"])),
        (["python3", "-O", "train.py"], Command("execute", [sys.executable, "-O", "train.py"])),
        (["/usr/bin/python3", "a.py"], Command("execute", ["/usr/bin/python3", "a.py"])),
        ("python3 -O train.py", None),
        ("python3 folder", None),
        ("/usr/bin/python3 train.py", None),
        (["torchrun", "train.py"], Command("execute", ["torchrun", "train.py"])),
        ("torchrun train.py", None),
        ("exec python3 train.py", None),
        (". ./start.sh", None),
        ("ulimit -n", None),
        ("cd a && python train.py", None),
        ("python train.py --lr $LR", None),
        ("A=1 python train.py", None),
        ("python train.py *.txt", None),
        ("python a.py\npython b.py", None),
    ],
)
def test_commands(entrypoint: Any, command: Command | None) -> None:
    """Plain Python runs in the fork; other text is a line of a shell, a list a program."""
    bash = shutil.which("bash")
    shell = [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]
    expected = command or Command("execute", [*shell, entrypoint])
    assert command_of(entrypoint, {}) == expected


@pytest.mark.parametrize("bash", [shutil.which("bash"), None])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("exit 3", 3),
        ("(exit 3) || true", 0),
        ("true && true", 0),
        ("(sleep 0.1; exit 4) &", 4),
        ("(exit 4) & sleep 0.2", 4),
        ("(exit 4) 2>&1 &", 4),
        ("(exit 0) & exit 5", 5),
        ("(exit 4) & wait $! || true", 0),
        ("echo 'a & b'; false", 1),
        ("true & true &", 0),
    ],
)
def test_how_a_line_ends(
    bash: str | None, line: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line's exit code tells of the jobs that it left in the background, in any shell."""
    monkeypatch.setattr(process_spec, "_bash", lambda: bash)
    argv = command_of(line, {}).argv
    assert subprocess.run(argv, check=False).returncode == code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("(exit 3) | cat", 3),
        ("sh -c 'exit 3' & true & true & sleep 0.2", 3),
        ("for each in 0 6 0; do (exit $each) & done; sleep 0.2", 6),
    ],
)
def test_a_crash_behind_a_shell(line: str, code: int) -> None:
    """In bash a failure counts anywhere in a pipe, and of any job in the background."""
    assert subprocess.run(command_of(line, {}).argv, check=False).returncode == code


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "TZ",
        "TMPDIR",
        "PYTORCH_JIT",
        "ATEN_CPU_CAPABILITY",
        "TORCH_LOGS",
        "TORCHINDUCTOR_CACHE_DIR",
        "NPY_DISABLE_CPU_FEATURES",
        "OMP_PROC_BIND",
        "PATH_TO_ANYTHING",
    ],
)
def test_variables_that_come_too_late(name: str) -> None:
    """A variable that may have been read before a fork gets an interpreter of its own."""
    assert command_of("python3 a.py", {name: "x"}).how == "execute"
    harmless = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2", "HOME": "/h", "HF_TOKEN": "x"}
    assert command_of("python3 a.py", harmless).how == "script"
    assert command_of("python3 a.py", {**harmless, name: "x"}).how == "execute"


@pytest.mark.parametrize("entrypoint", [None, "", "  ", [], 5, ["a", 5], ["a\0b"], {"a": 1}])
def test_refused(entrypoint: Any) -> None:
    """What is no command is refused with what would be right."""
    with pytest.raises(InvalidEntrypoint, match="give a command such as"):
        command_of(entrypoint, {})


@pytest.mark.parametrize(
    ("variables", "kind", "expected"),
    [
        ([], "cpu", {}),
        (["A=1", "B=x=y", "C"], "cpu", {"A": "1", "B": "x=y", "C": ""}),
        ({"cpu": ["A=1"], "cuda": ["A=2"]}, "cpu", {"A": "1"}),
        ({"cpu": ["A=1"], "gpu": ["A=3"]}, "cuda", {"A": "3"}),
        ({"cuda": ["A=2"]}, "cpu", {}),
        (None, "cpu", {}),
    ],
)
def test_variables(variables: Any, kind: str, expected: dict[str, str]) -> None:
    """Variables come as a list, or as a list per kind of device."""
    assert variables_of({"environment": {"environment_variables": variables}}, kind) == expected


def test_no_environment() -> None:
    """A configuration without an environment sets nothing."""
    assert variables_of({}, "cpu") == {}


def test_search_path() -> None:
    """The agent's interpreter comes first on the path."""
    own = sys.executable.rpartition("/")[0]
    assert search_path("/x:/y") == f"{own}:/x:/y"
    assert search_path(None).startswith(f"{own}:/")
