"""`log_policies`: what is done when a line of a trial's log matches a pattern."""

from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

from rung.config import log_pattern
from rung.config.sections.section import Section

POLICIES_MAX: Final = 32
"""In one file."""

Action = Literal["cancel_retries", "exclude_node", "webhook"]


class LegacyLogAction(Section):
    """The older way to write a log policy's action."""

    type: Literal["cancel_retries", "exclude_node"]
    """The action: cancel_retries or exclude_node."""


def _action_tag(value: Any) -> str:
    return "<map>" if isinstance(value, dict | LegacyLogAction) else "<text>"


LogAction = Annotated[
    Annotated[Action, Tag("<text>")] | Annotated[LegacyLogAction, Tag("<map>")],
    Discriminator(_action_tag),
]


def _usable(pattern: str) -> str:
    try:
        log_pattern.check(pattern)
    except log_pattern.PatternRefused as error:
        raise PydanticCustomError("log_pattern", "{reason}", {"reason": str(error)}) from error
    return pattern


class LogPolicy(Section):
    """What is done when a line of a trial's log matches a pattern."""

    name: str | None = None
    """Name of the policy."""
    pattern: Annotated[str, AfterValidator(_usable)] | None = None
    """Regular expression (RE2), looked for in the first 4096 characters of each line; absent: the
    policy of that name is switched off."""
    action: LogAction | None = None
    """`cancel_retries`: if the trial fails, it is not started again; `exclude_node`: later runs of
    the trial go to other agents; `webhook`, or absent: the match is recorded alone, and webhooks
    tell of it."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.name is None and self.pattern is None:
            raise PydanticCustomError("log_policy", "must have a `name`, and mostly a `pattern`")
        return self


def few(policies: list[LogPolicy]) -> list[LogPolicy]:
    """Return policies, unless there are too many to look for in every line."""
    if len(policies) > POLICIES_MAX:
        raise PydanticCustomError(
            "log_policies",
            "must be at most {most} policies; one pattern may have alternatives, `a|b`",
            {"most": POLICIES_MAX},
        )
    return policies


class Policy(NamedTuple):
    """A log policy that has an effect."""

    name: str
    pattern: str
    action: str
    """Empty: the match is recorded alone."""


def policies_of(config: dict[str, Any]) -> list[Policy]:
    """Return the policies of an expanded configuration that have a pattern."""
    found = []
    for each in config.get("log_policies") or []:
        action = each.get("action")
        if isinstance(action, dict):
            action = action.get("type")
        if each.get("pattern"):
            found.append(
                Policy(each.get("name") or each["pattern"], each["pattern"], action or "")
            )
    return found
