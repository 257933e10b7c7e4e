"""Training core: the parts of training that do not depend on the framework.

    units, plan             lengths and periods: how far a run trains, how often it validates
    progress                the progress of a trial in a framework's own loop, and what is due
    checkpoint_schedule     the checkpoint period that a run chooses by itself
    states                  of callbacks and ranks, as files of a checkpoint
    seeds, rng              seeds by domain, and the global random generators
    shares                  each rank's part of a batch
    averages, data_wait     metrics of many batches; the time that a loop waits for its data
    determinism             properties of the machine on which results depend
    distributed_config      the experiment file's section for ranks with a whole model each
    setup                   the start of a run in a framework's script

No framework is imported here.
"""

from rung.training.progress import ProgressTracker
from rung.training.setup import seeded_run

__all__ = ["ProgressTracker", "seeded_run"]
