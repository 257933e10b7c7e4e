"""Errors of the Core API."""

from rung.events import RungError
from rung.storage import ObjectError


class ReportRefused(RungError):
    """A report that cannot be recorded; the message names the metric and the fix."""


class MetricMissing(ReportRefused):
    """A validation lacks the searcher's metric or its time metric.

    It would be missing in every run, so a trial that ends with this error is not restarted
    (`rung.events.trial.FAULTS_OF_CODE`).
    """


class InvalidHP(RungError):
    """Raised by a script that cannot train with the hyperparameters it was given.

    Let it propagate out of the `with core.init()` block: the trial is then closed without a
    restart, and a search method that samples its trials samples a replacement.
    """


class CheckpointConflict(ObjectError):
    """Files or metadata of two ranks of one checkpoint conflict; raised on every rank."""


class AgentGone(RungError):
    """The agent that started this process did not answer."""


class NoAnswer(RungError):
    """The agent could not answer a question of the script, or not in time."""
