"""What a run tells its programs by environment variables."""

import json

from rung.core.ipc.environment import run_variables
from support.agent_end import run_spec


def test_everything_a_script_needs() -> None:
    """Hyperparameters as JSON, nested ones too; seed, length and trial as they are."""
    hparams = {"rate": 0.5, "optimizer": {"name": 'a"b', "beta": [1, None]}}
    variables = run_variables(run_spec(hparams=hparams, length=12))
    assert json.loads(variables.pop("RUNG_HPARAMS")) == hparams
    assert variables == {"RUNG_SEED": "17", "RUNG_LENGTH": "12", "RUNG_TRIAL": "exp00000.3"}


def test_no_length_is_no_variable() -> None:
    """A script can tell that its run has no end of its own."""
    assert "RUNG_LENGTH" not in run_variables(run_spec())
