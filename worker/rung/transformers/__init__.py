"""Transformers training that resumes as if nothing had happened, in `transformers.Trainer`'s loop.

    from transformers import Trainer, TrainingArguments
    from rung import transformers as rt

    with rt.init(config="experiment.yaml") as run:
        rung = rt.Callback(run)
        trainer = Trainer(model, TrainingArguments(...), train_dataset=..., callbacks=[rung])
        rung.train(trainer)

The callback reports, checkpoints, resumes (within an epoch, too) and leaves when asked to.
"""

from rung.torch.external_loop import init
from rung.training.errors import NotResumable
from rung.transformers.callback import Callback

__all__ = ["Callback", "NotResumable", "init"]
