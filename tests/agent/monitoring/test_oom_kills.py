"""The kernel's count of those it killed for want of memory."""

from pathlib import Path

import pytest

from rung.agent.monitoring.resource_monitor import oom_kills


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/kube/pod1\n", "sys/fs/cgroup/kube/pod1/memory.events"),
        (
            "12:cpu,cpuacct:/x\n5:memory:/docker/1\n",
            "sys/fs/cgroup/memory/docker/1/memory.oom_control",
        ),
    ],
)
def test_counts_of_the_group_and_the_machine(tmp_path: Path, group: str, file: str) -> None:
    """Both versions of control groups count, and the machine as a whole."""
    for name, text in (
        ("proc/self/cgroup", group),
        ("proc/vmstat", "pgfault 12\noom_kill 2\n"),
        (file, "low 0\nhigh 0\noom 9\noom_kill 3\noom_group_kill 0\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == 5


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    """Without any of the files nobody was killed, as far as one knows."""
    assert oom_kills(tmp_path) == 0


def test_here() -> None:
    """This machine's count can be read."""
    assert oom_kills() >= 0
