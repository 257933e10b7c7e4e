"""Provenance of a checkpoint: Python, the platform, the installed packages."""

import functools
import os
import platform
import sys
from pathlib import Path
from typing import Any

from rung.events.trial import RunSpec
from rung.storage.checkpoint.manifest import Provenance, digest_of


@functools.cache
def environment() -> dict[str, Any]:
    """Return Python's version, the platform and the installed packages; cached."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "packages": _packages(),
    }


def provenance(spec: RunSpec) -> Provenance:
    """Return the provenance of a run's checkpoints."""
    config = {"config": spec.config, "hparams": spec.hparams, "seed": spec.seed}
    return Provenance(
        experiment_id=spec.experiment_id,
        trial_id=spec.trial_id,
        run=spec.run,
        code=spec.code_digest,
        config=digest_of(config),
        data=digest_of(spec.config.get("data") or {}),
        environment=environment(),
    )


def _packages() -> dict[str, str]:
    """Return the installed distributions with their versions, from the names of their folders.

    `importlib.metadata` would open and parse a file for each of them, about 50 times slower.
    """
    found: dict[str, str] = {}
    for entry in reversed(sys.path):
        folder = Path(entry or ".")
        names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 - one call, no Paths
        for name in names:
            if name.endswith(".dist-info"):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                found[package.lower().replace("_", "-")] = version
    return dict(sorted(found.items()))
