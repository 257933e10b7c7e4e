"""Environment variables of a trial's processes: the agent's socket, their ranks, the run.

Those that describe the run suffice for programs that are not in Python.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from rung.cache.source import variable_of
from rung.events.trial import RunSpec

SOCKET_VARIABLE: Final = "RUNG_SOCKET"
"""Environment variable with the path of the agent's socket."""
ALLOCATION_VARIABLE: Final = "RUNG_ALLOCATION"
"""Environment variable with the allocation's id; its absence means: not managed by Rung."""
TOKEN_VARIABLE: Final = "RUNG_ALLOCATION_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the secret that authenticates this process for its allocation."""
RANK_VARIABLE: Final = "RUNG_RANK"
"""Environment variable with the process's rank within the run, from 0."""
SIZE_VARIABLE: Final = "RUNG_SIZE"
"""Environment variable with the number of the run's processes."""
LOCAL_RANK_VARIABLE: Final = "RUNG_LOCAL_RANK"
"""Environment variable with the process's rank among those on its agent, from 0."""
LOCAL_SIZE_VARIABLE: Final = "RUNG_LOCAL_SIZE"
"""Environment variable with the number of the run's processes on this agent."""
CROSS_RANK_VARIABLE: Final = "RUNG_CROSS_RANK"
"""Environment variable with the rank of this agent among the run's agents, from 0."""
CROSS_SIZE_VARIABLE: Final = "RUNG_CROSS_SIZE"
"""Environment variable with the number of the run's agents."""
CHIEF_VARIABLE: Final = "RUNG_CHIEF"
"""Environment variable with the `host:port` at which rank 0 listens for the others."""
KEY_VARIABLE: Final = "RUNG_KEY"
"""Environment variable with the key that authenticates a process to the chief of its run; the
chief's has the key of each agent, in the order of `CROSS_RANK_VARIABLE`, separated by commas."""
UNATTENDED_VARIABLE: Final = "RUNG_UNATTENDED_S"
"""Environment variable with the seconds that a process goes on without an agent; unset: 0."""
SECRETS_VARIABLE: Final = "RUNG_SECRETS"
"""Environment variable with the folder of the secret files that the experiment asked for."""
HPARAMS_VARIABLE: Final = "RUNG_HPARAMS"
"""The hyperparameters as JSON."""
SEED_VARIABLE: Final = "RUNG_SEED"
"""The trial's seed."""
LENGTH_VARIABLE: Final = "RUNG_LENGTH"
"""The value of the time metric up to which this run is to train; unset without a length."""
TRIAL_VARIABLE: Final = "RUNG_TRIAL"
"""The trial's id."""


def run_variables(spec: RunSpec) -> dict[str, str]:
    """Return the variables that describe a run."""
    variables = {
        HPARAMS_VARIABLE: msgspec.json.encode(spec.hparams).decode(),
        SEED_VARIABLE: str(spec.seed),
        TRIAL_VARIABLE: spec.trial_id,
    }
    if spec.length is not None:
        variables[LENGTH_VARIABLE] = str(spec.length)
    return variables


def filling_variable_of(name: str) -> str:
    """Return the environment variable with the cache's folder of a source's download."""
    return variable_of(name).replace("RUNG_DATA_", "RUNG_FILLING_", 1)


class Place(Struct, frozen=True, kw_only=True):
    """Ranks and sizes of a process within its run."""

    rank: int = 0
    """Counted over all agents, from 0."""
    size: int = 1
    local_rank: int = 0
    """Counted over the processes on this agent."""
    local_size: int = 1
    cross_rank: int = 0
    """Counted over the agents."""
    cross_size: int = 1

    def variables(self) -> dict[str, str]:
        """Return the environment variables with these numbers."""
        return {name: str(getattr(self, field)) for name, field in _FIELDS.items()}


_FIELDS: Final = {
    RANK_VARIABLE: "rank",
    SIZE_VARIABLE: "size",
    LOCAL_RANK_VARIABLE: "local_rank",
    LOCAL_SIZE_VARIABLE: "local_size",
    CROSS_RANK_VARIABLE: "cross_rank",
    CROSS_SIZE_VARIABLE: "cross_size",
}


def place_of(environment: Mapping[str, str]) -> Place:
    """Return the ranks and sizes in the variables; without any, those of a single process."""
    given = {field: environment.get(name) for name, field in _FIELDS.items()}
    return Place(**{field: int(value) for field, value in given.items() if value})
