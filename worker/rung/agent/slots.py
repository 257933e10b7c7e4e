"""Slots that an agent offers: CUDA devices, or slots of the CPU."""

import os
import re
import shutil
import subprocess
from typing import Final

import structlog

from rung.agent.forkserver.threads import cores
from rung.events.allocation import Slot

_DEVICE: Final = re.compile(r"GPU (\d+): (.+?) \(UUID: (\S+)\)")
_TIMEOUT_S: Final = 20

_log = structlog.get_logger()


class Device(Slot, frozen=True, kw_only=True):
    """A slot, and its name in `CUDA_VISIBLE_DEVICES`."""

    visible_as: str = ""


def detect(number: int | None) -> list[Device]:
    """Return the slots of this machine.

    Args:
        number: the number of CPU slots, whatever devices there are; None: one slot per CUDA
            device, or, without any, one per core.
    """
    if number is None:
        devices = _cuda_devices()
        if devices:
            return devices
        number = cores()
    return [Device(id=i, kind="cpu", name=f"CPU slot {i}") for i in range(number)]


def _cuda_devices() -> list[Device]:
    """Query `nvidia-smi`, because CUDA itself would allocate memory on every device."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listed = subprocess.run(  # noqa: S603 - found on the agent's own path
            [tool, "-L"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("nvidia-smi failed; offering slots of the CPU", error=str(error))
        return []
    return visible(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(listed: str, variable: str | None) -> list[Device]:
    """Return the devices of `nvidia-smi -L` that the variable makes visible, in its order.

    The variable is read as CUDA reads it: indexes or prefixes of UUIDs; entries after an unknown
    one are ignored.
    """
    found = [(match[1], match[2], match[3]) for match in _DEVICE.finditer(listed)]
    if variable is not None:
        chosen = []
        for entry in (word.strip() for word in variable.split(",")):
            named = [d for d in found if d[0] == entry or (entry and d[2].startswith(entry))]
            if not named:
                break
            chosen.append(named[0])
        found = chosen
    return [
        Device(id=i, kind="cuda", name=name, visible_as=uuid)
        for i, (_, name, uuid) in enumerate(found)
    ]
