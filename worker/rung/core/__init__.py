"""The Core API: turns any Python script into a trial, whatever framework it trains with.

    from rung import core

    with core.init(hparams={"lr": 0.1}) as ctx:
        for step in range(start, 1000):
            ...
            ctx.train.report_training_metrics(step + 1, {"loss": loss})
            if ctx.preempt.should_preempt():
                break

Its names follow Determined's Core API. Started by hand, the script runs without Rung.
"""

from rung.core._checkpoint.context import CheckpointContext, DownloadMode
from rung.core._context import Context, get_info, init, managed
from rung.core._data import DataContext, DataSource
from rung.core._determined import (
    ProfilerContext,
    SearcherContext,
    SearcherMode,
    SearcherOperation,
    Unit,
)
from rung.core._distributed import DistributedContext
from rung.core._info import Info, TrialInfo
from rung.core._preempt import PreemptContext
from rung.core._rank_connections import RanksApart
from rung.core._train import EarlyExitReason, TrainContext
from rung.core.errors import AgentGone, InvalidHP, MetricMissing, NoAnswer, ReportRefused

__all__ = [
    "AgentGone",
    "CheckpointContext",
    "Context",
    "DataContext",
    "DataSource",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "Info",
    "InvalidHP",
    "MetricMissing",
    "NoAnswer",
    "PreemptContext",
    "ProfilerContext",
    "RanksApart",
    "ReportRefused",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TrainContext",
    "TrialInfo",
    "Unit",
    "get_info",
    "init",
    "managed",
]
