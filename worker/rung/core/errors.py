"""What the Core API refuses."""

from rung.events import RungError


class ReportRefused(RungError):
    """A report that cannot be recorded; the message names the metric and what would be right."""


class InvalidHP(RungError):
    """Raised by a script that cannot train with the hyperparameters it was given.

    Let it leave the `with core.init()` block: the trial is then closed without a restart, and a
    search that draws its trials draws another one in its place.
    """


class AgentGone(RungError):
    """The agent that started this process did not answer."""
