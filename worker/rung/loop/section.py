"""What an experiment file says of ranks that each hold the whole model."""

from collections.abc import Mapping
from typing import Any, Final

from rung import core
from rung.loop.errors import NotJoined

_DEFAULT: Final = "torch"


def section_of(run: core.Context, door: str, *launchers: str) -> Mapping[str, Any]:
    """Return the section `distributed` of a run's experiment file.

    Args:
        run: of several ranks.
        door: who trains them, in the words of a message.
        launchers: those whose ranks it can join; any, where none is named.

    Raises:
        NotJoined: the file asks for what does not go together with that.
    """
    section: Mapping[str, Any] = run.info.trial.config.get("distributed") or {}
    if section.get("strategy") == "fsdp":
        raise NotJoined(
            f"distributed.strategy: fsdp is for rung.torch; with {door} each slot holds the whole "
            "model: use `strategy: ddp`, or rung.torch"
        )
    launcher = section.get("launcher") or _DEFAULT
    if launchers and launcher not in launchers:
        raise NotJoined(
            f"distributed.launcher is {launcher!r}, but {door} joins ranks that were launched by "
            f"{' or '.join(launchers)}: use `launcher: {launchers[0]}`"
        )
    return section
