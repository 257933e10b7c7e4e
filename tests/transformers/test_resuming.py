"""A Transformers trial that goes on has what its callbacks kept."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.framework_trials import needs, trial
from support.frameworks.transformers_fields import FIELDS
from support.fuse import before, out

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
IMPATIENT: dict[str, Any] = {
    "patience": 3,
    "arguments": {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
    },
}
"""Nothing is ever good enough, so it stops at the fourth of twelve steps."""


@pytest.mark.parametrize("moment", [before(3), before(4), out(1)])
def test_patience_does_not_begin_anew(
    process: "subprocess.Popen[str]", tmp_path: Path, moment: int
) -> None:
    """A trial stops where it would have; one that was killed behind its stop stays stopped."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(moment, **IMPATIENT) == -signal.SIGKILL
        assert runs.train(**IMPATIENT) == 0
        assert list(runs.curve("validation")) == [1, 2, 3, 4]
