"""What the tests of Keras trials have in common."""

from typing import Any, Final

FIELDS: Final[dict[str, Any]] = {
    "length": 3,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": 2},
        "checkpoint_policy": "none",
    },
}
"""Of a run of three epochs that stores a checkpoint every other batch."""
