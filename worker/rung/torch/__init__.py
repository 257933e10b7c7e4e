"""PyTorch training that resumes as if nothing had happened.

    from rung import torch as rt

    class MyTrial(rt.Trial): ...

    with rt.init(config="experiment.yaml") as context:
        rt.Trainer(MyTrial(context), context).fit()

The names follow Determined's PyTorchTrial; the trainer owns loop, seeds, validation and
checkpoint periods, and resuming.
"""

from rung.torch.averages import Reducer
from rung.torch.callback import Callback
from rung.torch.compiling import NotCompiled
from rung.torch.context import TrialContext
from rung.torch.exactness import NotDeterministic
from rung.torch.opening import init
from rung.torch.plain import NotPlain
from rung.torch.reducing import MetricReducer
from rung.torch.schedule import LRScheduler, StepMode
from rung.torch.trainer import Trainer
from rung.torch.trial import Trial
from rung.torch.unit import Batch, Epoch, InvalidPlan, Record

__all__ = [
    "Batch",
    "Callback",
    "Epoch",
    "InvalidPlan",
    "LRScheduler",
    "MetricReducer",
    "NotCompiled",
    "NotDeterministic",
    "NotPlain",
    "Record",
    "Reducer",
    "StepMode",
    "Trainer",
    "Trial",
    "TrialContext",
    "init",
]
