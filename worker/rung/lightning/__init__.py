"""Lightning training that resumes as if nothing had happened, in Lightning's own loop.

    import lightning
    from rung import lightning as rl

    with rl.init(config="experiment.yaml") as run:
        rung = rl.Callback(run)
        trainer = lightning.Trainer(max_epochs=10, callbacks=[rung])
        trainer.fit(Module(), loader, validation, **rung.resume)

The callback reports, checkpoints, resumes (within an epoch, too) and leaves when asked to.
"""

from rung.lightning.callback import Callback
from rung.torch.external_loop import init
from rung.training.errors import NotResumable

__all__ = ["Callback", "NotResumable", "init"]
