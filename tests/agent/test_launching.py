"""What a process is launched with."""

from pathlib import Path

import pytest

from rung.agent.launching import Identity, launch_of
from rung.agent.slots import Device
from rung.core.distributed import Place
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
