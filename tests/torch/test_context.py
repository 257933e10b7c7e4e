"""What a trial is made with."""

import pytest

from .conftest import Start


def test_the_context_finds_nested_hyperparameters(start: Start) -> None:
    """A group is reached by dots; a missing one is named beside those that exist."""
    hparams = {"global_batch_size": 32, "optimizer": {"lr": 0.5}, "a.b": 1}
    _, context = start(hparams=hparams)
    assert context.get_hparam("optimizer.lr") == 0.5
    assert context.get_hparam("a.b") == 1
    assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (32, 32)
    with pytest.raises(KeyError, match=r"'optimizer\.rate'.*global_batch_size, optimizer"):
        context.get_hparam("optimizer.rate")
