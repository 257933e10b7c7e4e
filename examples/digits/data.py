"""The handwritten digits that scikit-learn ships: 1797 images of 8x8 pixels."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return training and validation set.

    `sklearn.datasets.load_digits` gives the same numbers, but importing scikit-learn takes two
    seconds, which each of a search's short trials would pay; so this reads its file.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode().replace("\n", ",").rstrip(",")
    table = np.array(text.split(","), dtype=np.float32).reshape(-1, 65)
    images = torch.from_numpy(table[:, :64] / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64]).long()
    chosen = np.random.default_rng(0).permutation(len(labels))
    validation, training = torch.from_numpy(chosen[:400]), torch.from_numpy(chosen[400:])
    return (
        TensorDataset(images[training], labels[training]),
        TensorDataset(images[validation], labels[validation]),
    )
