"""A long, mixed, reproducible life of an experiment; prints the digest of its history when run.

Run as a program under different `PYTHONHASHSEED`, it shows that no decision depends on hashing.
"""

import hashlib
import random
import sys

import msgspec

from checkpoint_gc.scenario import (
    Experiment,
    damaged,
    ended,
    exited,
    pinned,
    stored,
    submitted,
    validated,
)
from rung.events import Payload


def life(seed: int, trials: int, steps: int) -> list[Payload]:
    """Return the facts of an experiment whose trials validate and store at every step."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    facts: list[Payload] = [submitted(3, 1, 1)]
    reached = dict.fromkeys(range(trials), 0)
    while reached:
        trial = draw.choice(list(reached))
        reached[trial] += 1
        step = reached[trial]
        name = f"{trial}-{step}"
        pair: list[Payload] = [
            validated(step, round(draw.random() + 1 / step, 2), trial),
            stored(name, step, trial),
        ]
        draw.shuffle(pair)
        facts += pair
        if draw.random() < 0.02:
            mishaps: list[Payload] = [damaged(name, trial), pinned(name), exited(1, trial)]
            facts.append(draw.choice(mishaps))
        if step == steps or draw.random() < 0.1:
            facts.append(ended(trial))
            del reached[trial]
    return facts


def main() -> None:
    """Print the digest of a life and its decisions."""
    experiment = Experiment()
    experiment.tell(*life(int(sys.argv[1]), trials=60, steps=30))
    history = msgspec.json.encode([(e.TYPE, e) for e in experiment.history])
    state = msgspec.json.encode(experiment.state)
    sys.stdout.write(hashlib.sha256(history + state).hexdigest())


if __name__ == "__main__":
    main()
