"""The Core API: what any Python script needs to be a trial, whatever it trains with.

    from rung import core

    with core.init(hparams={"lr": 0.1}) as ctx:
        for step in range(start, 1000):
            ...
            ctx.train.report_training_metrics(step + 1, {"loss": loss})
            if ctx.preempt.should_preempt():
                break

Its names follow Determined's Core API. Started by hand, the script runs by itself.
"""

from rung.core.checkpoint import CheckpointContext
from rung.core.context import Context, get_info, init, managed
from rung.core.data import DataContext, DataSource
from rung.core.distributed import DistributedContext
from rung.core.errors import AgentGone, InvalidHP, ReportRefused
from rung.core.info import Info, TrialInfo
from rung.core.preempt import PreemptContext
from rung.core.star import RanksApart
from rung.core.train import EarlyExitReason, TrainContext

__all__ = [
    "AgentGone",
    "CheckpointContext",
    "Context",
    "DataContext",
    "DataSource",
    "DistributedContext",
    "EarlyExitReason",
    "Info",
    "InvalidHP",
    "PreemptContext",
    "RanksApart",
    "ReportRefused",
    "TrainContext",
    "TrialInfo",
    "get_info",
    "init",
    "managed",
]
