"""What the tests of Lightning trials have in common."""

from typing import Any, Final

FIELDS: Final[dict[str, Any]] = {
    "length": 2,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "val_loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": 2},
        "checkpoint_policy": "none",
    },
}
"""Of a run of two epochs that stores a checkpoint every other batch."""
