"""Which words say that another rank was lost, and which are a failure's own."""

import pytest

from rung.agent.aftermath import is_aftermath


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: [gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer",
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "rung.core.star.RanksApart: rank 1 is gone while this one waited for it",
        "horovod.common.exceptions.HorovodInternalError: [gloo/transport/tcp/pair.cc:575] Broken",
    ],
)
def test_the_loss_of_another_rank(words: str) -> None:
    """What frameworks say when a rank that they were connected to dies."""
    assert is_aftermath(words)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "ValueError: no data",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
        "RanksApart: rank 1 called gather as its call 1 where this one called broadcast",
    ],
)
def test_a_failure_of_its_own(words: str) -> None:
    """What went wrong in the rank itself."""
    assert not is_aftermath(words)
