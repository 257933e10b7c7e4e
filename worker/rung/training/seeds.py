"""Seeds: derived from the trial's seed, a domain, and the position of the draw within it.

Different draws of a run must have different seeds. So every domain is listed here, with a number
of its own. A number must never change: all results depend on it.
"""

import enum

import numpy as np

_WORD = 0xFFFFFFFFFFFFFFFF


@enum.unique
class Domain(enum.IntEnum):
    """What a seed is for; the comment lists the numbers that distinguish its seeds."""

    ORDER = 1  # epoch: the training data's sampler, in rung.torch
    BATCH = 2  # epoch, batch, rank: what a data set draws for a batch, in rung.torch
    LOADER = 3  # epoch: the generator of a DataLoader, in rung.torch
    RANK = 4  # rank, step: the generators of a rank that has none yet
    PYTHON_BATCHES = 5  # epoch: batches that Python makes, in rung.tensorflow
    TRAINER_ORDER = 6  # epoch: the training data's sampler, in rung.transformers
    KERAS = 7  # nothing: the generator that unseeded draws of Keras share
    DATASET_HOOKS = 8  # epoch, hook: what a PyDataset draws between epochs, in rung.keras
    SAMPLE = 9  # epoch, sample: what a data set draws for a sample, in rung.transformers
    COLLATION = 10  # epoch, sample: what a collator draws, in rung.transformers
    WORKERS = 11  # epoch: the workers of a DataLoader, in rung.transformers
    EVALUATION = 12  # nothing: the seed of an evaluation's draws, in rung.transformers
    STREAM = 13  # epoch, worker: a stream that several ranks read, in rung.torch


def derive(seed: int, domain: Domain, *place: int) -> int:
    """Return a seed of 63 bits.

    Args:
        seed: the trial's.
        domain: what is drawn.
        place: which draw of the domain it is: an epoch, a batch, a rank.
    """
    sequence = np.random.SeedSequence([number & _WORD for number in (seed, domain, *place)])
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1
