"""What a run tells its programs by environment variables: enough for a language without `core`."""

from typing import Final

import msgspec

from rung.events.trial import RunSpec

HPARAMS_VARIABLE: Final = "RUNG_HPARAMS"
"""The hyperparameters as JSON."""
SEED_VARIABLE: Final = "RUNG_SEED"
"""The trial's seed."""
LENGTH_VARIABLE: Final = "RUNG_LENGTH"
"""Until which value of the time metric this run shall train; absent where there is no length."""
TRIAL_VARIABLE: Final = "RUNG_TRIAL"
"""The trial's id."""


def told(spec: RunSpec) -> dict[str, str]:
    """Return the variables of a run."""
    variables = {
        HPARAMS_VARIABLE: msgspec.json.encode(spec.hparams).decode(),
        SEED_VARIABLE: str(spec.seed),
        TRIAL_VARIABLE: spec.trial_id,
    }
    if spec.length is not None:
        variables[LENGTH_VARIABLE] = str(spec.length)
    return variables
