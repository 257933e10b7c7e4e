"""The configuration of an experiment's runs, stored once as an object, by digest.

Events of runs carry the digest. The bytes follow from the expanded configuration in
`experiment.submitted`, so a lost object can be made again.
"""

import hashlib
from typing import Any, Final, NamedTuple

import msgspec

CONFIGS: Final = "configs/"
"""Prefix of the names of these objects."""


class RunConfig(NamedTuple):
    """One of these objects."""

    digest: str
    """SHA-256 of its bytes."""
    data: bytes

    @property
    def name(self) -> str:
        """Its name in the object store."""
        return object_name(self.digest)


def object_name(digest: str) -> str:
    """Return the name of the object with a digest."""
    return f"{CONFIGS}{digest}.json"


def run_config(config: dict[str, Any]) -> RunConfig:
    """Return the object of an expanded configuration: all but its `hyperparameters`.

    The order is kept: trials see data sources in the order of the experiment file.
    """
    found = {name: value for name, value in config.items() if name != "hyperparameters"}
    data = msgspec.json.encode(found)
    return RunConfig(hashlib.sha256(data).hexdigest(), data)
