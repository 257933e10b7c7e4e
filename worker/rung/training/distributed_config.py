"""The section `distributed` of an experiment file, for ranks that each hold the whole model."""

from collections.abc import Mapping
from typing import Any, Final

from rung import core
from rung.training.errors import NotJoined

_DEFAULT: Final = "torch"


def distributed_config(run: core.Context, framework: str, *launchers: str) -> Mapping[str, Any]:
    """Return the section `distributed` of a run's experiment file.

    Args:
        run: of several ranks.
        framework: its name in messages.
        launchers: the launchers that it supports; none: all of them.

    Raises:
        NotJoined: the file has options that the framework does not support.
    """
    section: Mapping[str, Any] = run.info.trial.config.get("distributed") or {}
    if section.get("strategy") == "fsdp":
        raise NotJoined(
            f"distributed.strategy: fsdp is for rung.torch; with {framework} each slot holds the "
            "whole model: use `strategy: ddp`, or rung.torch"
        )
    launcher = section.get("launcher") or _DEFAULT
    if launchers and launcher not in launchers:
        raise NotJoined(
            f"distributed.launcher is {launcher!r}, but {framework} joins ranks that were "
            f"launched by {' or '.join(launchers)}: use `launcher: {launchers[0]}`"
        )
    return section
