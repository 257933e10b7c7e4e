"""What a training keeps."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rung.events import RungError
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]


def test_what_is_kept_is_sorted(tf: Any, part: Part) -> None:
    """What is the same on all ranks, what gradients do not move, what each rank has of its own."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((3,)), layers.Dense(2), layers.BatchNormalization(), layers.Dropout(0.5)]
    )
    optimizer = tf.keras.optimizers.Adam()
    kept = part("checkpoint_items").Kept(
        {
            "model": model,
            "optimizer": optimizer,
            "mean": tf.keras.metrics.Mean(),
            "generator": tf.random.Generator.from_seed(1),
            "python": random.Random(2),  # noqa: S311 - to be kept
            "numpy": np.random.default_rng(3),
        }
    )
    assert optimizer.built
    moving = {id(each) for each in model.variables if "moving" in each.path}
    assert {id(each) for each in kept.untrained} == moving
    assert moving < {id(each) for each in kept.shared}
    seeds = [id(each) for each in model.variables if "seed_generator" in each.path]
    own = [id(each) for each in kept.own]
    assert len(seeds) == 1
    assert set(seeds) <= set(own)
    assert len(own) == len(set(own)) >= 5, "two generators, a seed, a sum and a count"
    assert list(kept.generators) == ["python", "numpy"]


def test_ranks_begin_with_states_of_their_own(tf: Any, part: Part) -> None:
    """Generators follow from the seed given; sums begin at nothing."""
    generator, mean = tf.random.Generator.from_seed(1), tf.keras.metrics.Mean()
    chance = np.random.default_rng(3)
    kept = part("checkpoint_items").Kept({"generator": generator, "mean": mean, "chance": chance})
    mean.update_state(3.0)
    found = []
    for seed in (5, 5, 6):
        kept.begin_anew(seed)
        found.append((float(generator.normal(())), float(mean.count), chance.random()))
    assert found[0] == found[1]
    assert found[0][1] == 0.0
    assert found[0][0] != found[2][0]
    assert found[0][2] != found[2][2]


def test_what_cannot_be_kept_is_named(tf: Any, part: Part) -> None:
    """A thing without state, a model without weights, a name that TensorFlow uses."""
    layers, kept = tf.keras.layers, part("checkpoint_items").Kept
    with pytest.raises(RungError, match="'thing': …}: a object cannot be kept"):
        kept({"thing": object()})
    with pytest.raises(RungError, match="'model': …}: the model has no weights yet"):
        kept({"model": tf.keras.Sequential([layers.Dense(1)])})
    with pytest.raises(RungError, match="'write': …}: choose another name"):
        kept({"write": tf.Variable(1.0)})
    first, second = tf.keras.optimizers.SGD(), tf.keras.optimizers.SGD()
    with pytest.raises(RungError, match="the optimizers a, b have no variables yet"):
        kept({"a": first, "b": second, "weight": tf.Variable(1.0)})
