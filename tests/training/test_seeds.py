"""Seeds by domain."""

import re
from pathlib import Path

from rung.training.seeds import Domain, derive

WORKER = Path(__file__).parents[2] / "worker"


def test_no_two_domains_are_equal() -> None:
    """Aliases, of which an enum can have any number, are members, too."""
    members = Domain.__members__
    assert len({domain.value for domain in members.values()}) == len(members)


def test_the_numbers_stay() -> None:
    """They are part of every curve that was trained."""
    assert {domain.name: domain.value for domain in Domain} == {
        "ORDER": 1,
        "BATCH": 2,
        "LOADER": 3,
        "RANK": 4,
        "PYTHON_BATCHES": 5,
        "TRAINER_ORDER": 6,
        "KERAS": 7,
        "DATASET_HOOKS": 8,
        "SAMPLE": 9,
        "COLLATION": 10,
        "WORKERS": 11,
        "EVALUATION": 12,
        "STREAM": 13,
    }
    assert derive(5, Domain.ORDER, 3) == 326124782927953987
    assert derive(-1, Domain.RANK, 1, 7) == 481171307907845567


def test_a_rank_draws_otherwise_than_a_sample() -> None:
    """Rank 1 at batch 0, and sample 0 of epoch 1, once had one seed."""
    assert derive(5, Domain.RANK, 1, 0) != derive(5, Domain.SAMPLE, 1, 0)


def test_each_seed_is_derived_in_a_domain() -> None:
    """Of the enum, in the whole worker."""
    calls = [
        f"{path}: {found}"
        for path in WORKER.rglob("*.py")
        for found in re.findall(r"derive\(\s*[\w.]+,\s*(\w+)", path.read_text(encoding="utf-8"))
        if found not in {"Domain", "domain"}
    ]
    assert calls == []
