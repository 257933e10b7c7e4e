"""What a run takes of its machine: CPU, memory, disk, network, GPU; read beside the training.

Read from the kernel by `psutil`, and from the GPU's driver by `nvidia-ml-py`: the training is
neither asked nor stopped. Rates are over the time since the reading before; what a process that
has ended since did last is not in them. What cannot be read is not among the values: no zero
stands for it.

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

from rung.agent.isolation import as_owner_of
from rung.agent.process_tree import tree
from rung.agent.slots import Device

KIND: Final = "system"
DISK: Final = "disk_read_bytes_per_s"
"""Is there if reads and writes could be measured."""


class _Reading(NamedTuple):
    """Counters, from which rates are made, and what is as it is."""

    at_s: float
    counters: dict[str, float]
    values: dict[str, float]


class Vitals:
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
        """Return what the run takes now; blocks for a millisecond or a few."""
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
        with as_owner_of(self._folder):  # others may not read it, root without SYS_PTRACE neither
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
    """Return the seconds that a process and its children that have ended have computed."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def _memory(processes: Iterable[int]) -> tuple[int, int]:
    """Return private bytes of all, and the most that one of them shares."""
    private = shared = 0
    for pid in processes:
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(pid).memory_info()
            private += found.rss - found.shared
            shared = max(shared, found.shared)
    return private, shared


def _disk(processes: Iterable[int]) -> dict[str, float]:
    """Return what processes have read and written; nothing unless that is known of all."""
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
    """Return the driver's handles of the devices; none where it cannot be asked."""
    if not devices:
        return []
    try:
        driver = import_module("pynvml")
        driver.nvmlInit()
        return [
            _Gpu(f"gpu{device.id}", driver, driver.nvmlDeviceGetHandleByUUID(device.visible_as))
            for device in devices
        ]
    except Exception:  # noqa: BLE001 - the module or the driver is missing, in a dozen ways
        return []


def _read_gpus(gpus: Sequence[_Gpu]) -> dict[str, float]:
    """Return what each device says; a part of one (MIG) says less than a whole one."""
    values: dict[str, float] = {}
    for name, driver, handle in gpus:
        with contextlib.suppress(Exception):  # the driver's own, which may be missing
            memory = driver.nvmlDeviceGetMemoryInfo(handle)
            values[f"{name}_memory_bytes"] = float(memory.used)
            values[f"{name}_memory_percent"] = 100 * memory.used / memory.total
        with contextlib.suppress(Exception):  # as above
            values[f"{name}_percent"] = float(driver.nvmlDeviceGetUtilizationRates(handle).gpu)
    return values
