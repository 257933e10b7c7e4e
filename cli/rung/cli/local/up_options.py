"""How `rung up` is started: what its command line takes, and what of it the agent gets."""

from typing import NamedTuple


class UpOptions(NamedTuple):
    """The options of `rung up`; None where one was not given."""

    port: int
    slots: int | None = None
    isolation: str = "auto"
    """Of the trials, as the agent's `--isolation`."""
    keep_token: bool = False
    anchor: str | None = None
    """A file or an URL that gets the signed heads of the seals."""
    logs_max_bytes: int | None = None
    """How much of the log of a run is stored."""
    logs_keep_days: int | None = None
    """After so many days printed lines are deleted; 0: never."""
    logs_total_bytes: int | None = None
    """Where the text of all printed lines has more bytes, the oldest logs are deleted."""

    def arguments(self) -> list[str]:
        """Return them as `rung up` takes them."""
        valued = {
            "--anchor": self.anchor,
            "--logs-keep-days": self.logs_keep_days,
            "--logs-total-bytes": self.logs_total_bytes,
        }
        given = [text for name, value in valued.items() for text in _given(name, value)]
        token = ["--keep-token"] if self.keep_token else []
        return ["--port", str(self.port), *self.agent_arguments(), *given, *token]

    def agent_arguments(self) -> list[str]:
        """Return what of them the agent takes, under the same names."""
        valued = {
            "--isolation": self.isolation,
            "--slots": self.slots,
            "--logs-max-bytes": self.logs_max_bytes,
        }
        return [text for name, value in valued.items() for text in _given(name, value)]


def _given(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]
