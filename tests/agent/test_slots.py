"""Finding slots."""

import pytest

from rung.agent.forkserver.threads import cores, threads_of
from rung.agent.slots import detect, visible

LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-aa11)
GPU 1: NVIDIA H200 (UUID: GPU-bb22)
  MIG 1g.18gb Device 0: (UUID: MIG-cc33)
GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-dd44)
"""


def test_artificial_slots() -> None:
    """A number gives so many slots of the CPU."""
    slots = detect(3)
    assert [(slot.id, slot.kind, slot.name) for slot in slots] == [
        (0, "cpu", "CPU slot 0"),
        (1, "cpu", "CPU slot 1"),
        (2, "cpu", "CPU slot 2"),
    ]


@pytest.mark.parametrize(
    ("variable", "uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb22", "GPU-dd44"]),
        ("2,0", ["GPU-dd44", "GPU-aa11"]),
        ("GPU-bb", ["GPU-bb22"]),
        ("1, 9, 0", ["GPU-bb22"]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_devices(variable: str | None, uuids: list[str]) -> None:
    """Devices are those that CUDA would see, in its order."""
    found = visible(LISTED, variable)
    assert [device.visible_as for device in found] == uuids
    assert [device.id for device in found] == list(range(len(uuids)))


@pytest.mark.parametrize(
    ("held", "slots", "asked", "threads"),
    [
        (1, 1, {}, cores()),
        (1, 10_000, {}, 1),
        (2, 2, {}, cores()),
        (1, 1, {"OMP_NUM_THREADS": "3"}, 3),
        (1, 10_000, {"OMP_NUM_THREADS": "many"}, 1),
        (0, 10_000, {}, 1),
    ],
)
def test_threads(held: int, slots: int, asked: dict[str, str], threads: int) -> None:
    """A run gets its part of the cores, unless the experiment says otherwise."""
    assert threads_of(held=held, slots=slots, variables=asked) == threads
