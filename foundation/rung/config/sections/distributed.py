"""How the processes of a trial that has several slots work together."""

from typing import Literal

from rung.config.sections.section import Flag, Section, Text


class Distributed(Section):
    """How the processes of a trial find each other and share its work; one process per slot."""

    launcher: Literal["torch", "horovod", "tensorflow", "none"] = "torch"
    """For which framework their environment is set up; `none`: one process per machine."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """What `rung.torch` does with models: a copy per slot, or a part per slot."""
    backend: Literal["gloo", "nccl"] | None = None
    """By what tensors travel; absent: nccl where each slot is a GPU, else gloo."""
    interface: Text | None = None
    """Network interface between machines, such as `eth0`; absent: the agent's choice."""
    sync_batch_norm: Flag = False
    """Whether batch normalisation sees the batches of all slots as one, on GPUs."""
    find_unused_parameters: Flag = False
    """Whether some parameters may get no gradient in a step, under `ddp`."""
