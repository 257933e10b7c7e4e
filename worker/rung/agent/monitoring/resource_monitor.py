"""Resource monitor: CPU, memory, disk, network and GPU that a run uses.

Read from the kernel by `psutil`, and from the GPU's driver by `nvidia-ml-py`, without involving
the training process. Rates are averages since the previous reading; they lack the last activity of
processes that have ended since. A value that cannot be read is left out, and not reported as zero.

    cpu_percent                     of one core: two busy cores are 200
    memory_bytes                    private memory of all processes, and what they share once
    processes
    disk_read_bytes_per_s, disk_write_bytes_per_s
    gpu0_percent, gpu0_memory_bytes, gpu0_memory_percent       by slot
    host_cpu_percent                of all cores
    host_memory_percent
    host_disk_free_bytes            where the run's working folder is
    host_network_in_bytes_per_s, host_network_out_bytes_per_s  without the loopback
"""

import contextlib
import shutil
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from rung.agent.isolation.isolation import as_owner_of
from rung.agent.monitoring.process_tree import tree
from rung.agent.slots import Device

KIND: Final = "system"
DISK: Final = "disk_read_bytes_per_s"
"""Among the values if reads and writes can be measured."""


_ROOT: Final = Path("/")


class _Reading(NamedTuple):
    """Counters, whose differences give rates, and values that are reported as they are."""

    at_s: float
    counters: dict[str, float]
    values: dict[str, float]


class ResourceMonitor:
    """The readings of one run."""

    def __init__(self, mains: Iterable[int], folder: Path, devices: Sequence[Device]) -> None:
        """Take the first reading.

        Args:
            mains: the run's main processes.
            folder: its working folder.
            devices: the slots that it holds.
        """
        self._mains = list(mains)
        self._folder = folder
        self._gpus = _gpus([device for device in devices if device.kind == "cuda"])
        self._before = self._read()

    def measure(self) -> dict[str, float]:
        """Return the run's current usage; blocks for some milliseconds."""
        before, now = self._before, self._read()
        self._before = now
        seconds = max(now.at_s - before.at_s, 1e-3)
        grown = {
            name: max(0.0, value - before.counters[name])
            for name, value in now.counters.items()
            if name in before.counters
        }
        busy, idle = grown.pop("host_busy"), grown.pop("host_idle")
        rates = {
            "cpu_percent": 100 * grown.pop("cpu") / seconds,
            "host_cpu_percent": 100 * busy / (busy + idle) if busy + idle else 0.0,
        }
        return {
            **rates,
            **{f"{name}_per_s": n / seconds for name, n in grown.items()},
            **now.values,
        }

    def _read(self) -> _Reading:
        processes = tree(self._mains)
        private, shared = _memory(processes)
        values = {
            "memory_bytes": float(private + shared),
            "processes": float(len(processes)),
            "host_memory_percent": _host_memory_percent(),
            **_free(self._folder),
            **_read_gpus(self._gpus),
        }
        with as_owner_of(self._folder):  # the kernel lets no other user read it, nor root alone
            disk = _disk(processes)
        received, sent = _network()
        busy, idle = _host_cpu()
        counters = {
            "cpu": sum(map(_cpu_s, processes)),
            **disk,
            "host_network_in_bytes": received,
            "host_network_out_bytes": sent,
            "host_busy": busy,
            "host_idle": idle,
        }
        return _Reading(time.monotonic(), counters, values)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def _memory(processes: Iterable[int]) -> tuple[int, int]:
    """Return the sum of private bytes, and the largest number of shared bytes."""
    private = shared = 0
    for pid in processes:
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(pid).memory_info()
            private += found.rss - found.shared
            shared = max(shared, found.shared)
    return private, shared


def _disk(processes: Iterable[int]) -> dict[str, float]:
    """Return the bytes that processes have read and written; empty unless known for all."""
    read = written = 0.0
    for pid in processes:
        try:
            found = psutil.Process(pid).io_counters()
            read += found.read_bytes
            written += found.write_bytes
        except (psutil.Error, OSError, RuntimeError, ValueError):
            if psutil.pid_exists(pid):
                return {}
    return {"disk_read_bytes": read, "disk_write_bytes": written}


def _network() -> tuple[float, float]:
    devices = psutil.net_io_counters(pernic=True, nowrap=False)
    found = [counts for name, counts in devices.items() if name != "lo"]
    return float(sum(it.bytes_recv for it in found)), float(sum(it.bytes_sent for it in found))


def _host_cpu() -> tuple[float, float]:
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return busy, times.idle + times.iowait


def _host_memory_percent() -> float:
    found = psutil.virtual_memory()  # its own percentage is rounded
    return 100 * (1 - found.available / found.total)


def _free(folder: Path) -> dict[str, float]:
    try:
        return {"host_disk_free_bytes": float(shutil.disk_usage(folder).free)}
    except OSError:
        return {}


class _Gpu(NamedTuple):
    name: str
    driver: Any
    handle: Any


def _gpus(devices: Sequence[Device]) -> list[_Gpu]:
    """Return the driver's handles of the devices; none where NVML is not available."""
    if not devices:
        return []
    try:
        driver = import_module("pynvml")
        driver.nvmlInit()
        return [
            _Gpu(f"gpu{device.id}", driver, driver.nvmlDeviceGetHandleByUUID(device.visible_as))
            for device in devices
        ]
    except Exception:  # noqa: BLE001 - a missing module or driver raises many kinds of errors
        return []


def _read_gpus(gpus: Sequence[_Gpu]) -> dict[str, float]:
    """Return the values of each device; a MIG instance has fewer than a whole device."""
    values: dict[str, float] = {}
    for name, driver, handle in gpus:
        with contextlib.suppress(Exception):  # the driver's own, which may be missing
            memory = driver.nvmlDeviceGetMemoryInfo(handle)
            values[f"{name}_memory_bytes"] = float(memory.used)
            values[f"{name}_memory_percent"] = 100 * memory.used / memory.total
        with contextlib.suppress(Exception):  # as above
            values[f"{name}_percent"] = float(driver.nvmlDeviceGetUtilizationRates(handle).gpu)
    return values


def oom_kills(root: Path = _ROOT) -> int:
    """Return how many processes the OOM killer has killed, in this cgroup or machine.

    The kernel does not record which processes. One that ended by a SIGKILL that nothing here sent,
    while the count rose, was most likely killed by it. The count never falls, and is 0 where the
    kernel has none.

    Args:
        root: where `proc` and `sys` are mounted.
    """
    files = [root / "proc/vmstat", *_counts_of_groups(root)]
    return sum(_kills_in(file) for file in files)


def _counts_of_groups(root: Path) -> list[Path]:
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


def _kills_in(file: Path) -> int:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return 0
    _, _, found = f"\n{text}".partition("\noom_kill ")
    return int(found.partition("\n")[0]) if found else 0
