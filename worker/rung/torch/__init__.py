"""PyTorch training that resumes exactly.

    from rung import torch as rt

    class MyTrial(rt.Trial): ...

    with rt.init(config="experiment.yaml") as context:
        rt.Trainer(MyTrial(context), context).fit()

The names follow Determined's PyTorchTrial; the trainer owns loop, seeds, validation and
checkpoint periods, and resuming.
"""

from rung.torch.callback import Callback
from rung.torch.checkpoint.tensor_file import NotPlain
from rung.torch.context import TrialContext
from rung.torch.data.stream import stream
from rung.torch.determinism import NotDeterministic
from rung.torch.lr_schedule import LRScheduler, StepMode
from rung.torch.metrics.reducers import MetricReducer
from rung.torch.setup import init, trial_context
from rung.torch.torch_compile import NotCompiled
from rung.torch.trainer import Trainer
from rung.torch.trial import Trial
from rung.training.averages import Reducer
from rung.training.units import Batch, Epoch, InvalidPlan, Record

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
    "stream",
    "trial_context",
]
