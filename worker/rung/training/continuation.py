"""Continuation: whether a trial resumes a checkpoint whole, or starts from its weights alone."""

import structlog

from rung import core

_log = structlog.get_logger("rung")


def continues(run: core.Context) -> bool:
    """Return whether a trial goes on where the one ended from whose checkpoint it starts.

    Its experiment file says so: `rung extend` writes it for a search that has ended.
    """
    section = run.info.trial.config.get("reproducibility") or {}
    return bool(section.get("continue_source", False))


def is_own(run: core.Context, trial_id: str) -> bool:
    """Return whether a run resumes whole from a checkpoint of a trial."""
    info = run.info
    return not info.managed or trial_id == info.trial.trial_id or continues(run)


def log_place(run: core.Context, batches: int, checkpoint_id: str) -> None:
    """Log, on the chief, that training resumes behind so many batches."""
    if run.distributed.is_chief:
        _log.info("training resumes", batches=batches, checkpoint=checkpoint_id)
