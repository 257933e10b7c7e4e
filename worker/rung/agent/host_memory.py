"""How often the kernel has killed for want of memory, here: in this control group or machine.

The kernel tells nobody whom it killed, but counts. A process that was killed by a signal that
nobody here sent, while the count rose, was most likely one of its victims.
"""

from pathlib import Path

_ROOT = Path("/")


def kills(root: Path = _ROOT) -> int:
    """Return the count; it never falls, and is 0 where the kernel does not say.

    Args:
        root: where `proc` and `sys` are mounted.
    """
    files = [root / "proc/vmstat", *_of_groups(root)]
    return sum(_count(file) for file in files)


def _of_groups(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    mount = root / "sys/fs/cgroup"
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files.append(mount / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(mount / "memory" / path.lstrip("/") / "memory.oom_control")
    return files


def _count(file: Path) -> int:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return 0
    found = [line.split() for line in text.splitlines() if line.startswith("oom_kill ")]
    return sum(int(words[1]) for words in found)
