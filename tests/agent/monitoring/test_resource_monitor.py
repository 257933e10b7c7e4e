"""What a run takes of the machine, read from outside."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rung.agent.monitoring import resource_monitor
from rung.agent.monitoring.resource_monitor import DISK, ResourceMonitor
from rung.agent.slots import Device
from rung.events.metric import MetricsReported
from support.agent_rig import Rig

pytestmark = pytest.mark.processes

DRIVER = """
from types import SimpleNamespace

def nvmlInit():
    pass

def nvmlDeviceGetHandleByUUID(uuid):
    return {"GPU-a": 1, "GPU-b": 2}[uuid]

def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(used=handle * 10, total=100)

def nvmlDeviceGetUtilizationRates(handle):
    if handle == 2:
        raise RuntimeError("Not Supported")
    return SimpleNamespace(gpu=97)
"""
"""A module in place of the driver's, which needs a GPU."""


def _busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_process_and_its_children(tmp_path: Path) -> None:
    """Time, memory and writes are of the whole tree."""
    script = (
        "import os, sys, time\n"
        "block = bytearray(b'x') * 30_000_000\n"
        "if os.fork() == 0:\n    more = bytearray(b'x') * 30_000_000\n"
        "with open(sys.argv[1] + str(os.getpid()), 'wb') as file:\n"
        "    file.write(b'x' * 1_000_000); os.fsync(file.fileno())\n"
        "print('here', flush=True)\n"
        "while True: pass\n"
    )
    command = [sys.executable, "-c", script, f"{tmp_path}/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            readings = ResourceMonitor([process.pid], tmp_path, [])
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"here\n"] * 2
            _busy(0.1)
            values = readings.measure()
        finally:
            os.killpg(process.pid, 9)
    assert values["processes"] == 2
    assert values["memory_bytes"] > 60_000_000
    assert values["cpu_percent"] > 1
    assert 0 < values["host_cpu_percent"] <= 100
    assert values["host_disk_free_bytes"] > 0
    assert not [name for name in values if name.startswith("gpu")]


def test_reading_costs_little() -> None:
    """A reading of one process takes milliseconds of this one's time at most."""
    readings = ResourceMonitor([os.getpid()], Path.cwd(), [])
    began = time.process_time()
    for _ in range(20):
        readings.measure()
    assert (time.process_time() - began) / 20 < 0.02


def test_what_cannot_be_read_is_no_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel refuses a process's reads and writes, nothing is told of the run's."""
    readings = ResourceMonitor([os.getpid()], tmp_path, [])
    assert {DISK, "disk_write_bytes_per_s"} <= readings.measure().keys()

    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "io_counters", refuse)
    assert not [name for name in readings.measure() if name.startswith("disk_")]


async def test_the_log_says_what_is_not_measured(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose reads and writes are not told has that in its log, once."""
    monkeypatch.setattr(resource_monitor, "_disk", lambda _: {})
    rig.start(sample_s=0.05)
    allocation = await rig.grant(code=rig.code(train="import signal; signal.pause()"))
    measured = await rig.until(MetricsReported, lambda it: len(it.rows) > 0, count=3)
    await rig.signal(allocation, "kill")
    ended = await rig.end_of(allocation)
    notes = [text for text in ended.printed("platform") if "not measured" in text]
    assert len(notes) == 1
    assert DISK not in measured[0].rows[0].values


def test_a_run_that_is_gone(tmp_path: Path) -> None:
    """Of processes that ended there is nothing, and no error."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    values = ResourceMonitor([process.pid], tmp_path / "gone", []).measure()
    assert (values["processes"], values["memory_bytes"]) == (0, 0)
    assert "host_disk_free_bytes" not in values


def test_gpus_by_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slot's device is asked; what one does not say is left out."""
    (tmp_path / "pynvml.py").write_text(DRIVER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    devices = [
        Device(id=0, kind="cuda", name="H200", visible_as="GPU-a"),
        Device(id=3, kind="cuda", name="H200", visible_as="GPU-b"),
        Device(id=4, kind="cpu", name="CPU slot 4"),
    ]
    values = ResourceMonitor([os.getpid()], tmp_path, devices).measure()
    monkeypatch.delitem(sys.modules, "pynvml")
    assert {name: value for name, value in values.items() if name.startswith("gpu")} == {
        "gpu0_percent": 97,
        "gpu0_memory_bytes": 10,
        "gpu0_memory_percent": 10,
        "gpu3_memory_bytes": 20,
        "gpu3_memory_percent": 20,
    }


def test_without_the_drivers_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be imported, or finds no driver, there are no values of GPUs."""
    (tmp_path / "pynvml.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    device = Device(id=0, kind="cuda", name="H200", visible_as="GPU-a")
    values = ResourceMonitor([os.getpid()], tmp_path, [device]).measure()
    assert not [name for name in values if name.startswith("gpu")]
