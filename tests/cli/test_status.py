"""The status of a cluster: what is a problem, and what is printed."""

import re
from datetime import UTC, datetime

import pytest

from rung.cli.operations.cluster.replicas import Replica
from rung.cli.operations.cluster.status import (
    Broker,
    ClusterStatus,
    Consumer,
    DeadLetter,
    Decider,
    PoolStatus,
    SealStatus,
    TopicStatus,
    UnfinishedImport,
    print_status,
)

NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)


def _status() -> ClusterStatus:
    """Return a cluster of which everything can be said, and nothing is wrong."""
    replica = Replica(host="10.0.0.7", partitions={"experiments": [0, 2], "placements": [0, 2]})
    return ClusterStatus(
        ledger="kafka://a:9092/rung",
        ledger_id="c0ffee",
        brokers=[Broker(id=1, address="a:9092", answers=True)],
        topics=[TopicStatus(name="pools", events=7, ends=[3, 4], leaderless=[], behind=[])],
        replicas={"searcher": [replica]},
        consumers=[
            Consumer(
                name="searcher-intake", topic="placements", lag=2, lags=[2, 0], positions=[5, 3]
            )
        ],
        deciders=[
            Decider(
                name="searcher", facts=4321, since_decision=5, since_snapshot=21, snapshot_s=61.0
            )
        ],
        pools=[PoolStatus(name="gpu", agents=2, slots=16, idle=4, waiting=3)],
        experiments={"active": 2, "paused": 1},
        dead_letters=1,
        seals=SealStatus(records=6006, unsealed=5, since="2026-01-01T01:59:58.000Z"),
        newest_letters=[
            DeadLetter(
                time="2026-01-01T00:00:00Z", reader="searcher", topic="t", key="k", reason="r"
            )
        ],
    )


def test_everything_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """All is well comes first, then what there is."""
    status = _status()
    status.judge(NOW)
    print_status(status)
    text = capsys.readouterr().out
    assert text.startswith("All is well.\n")
    for words in (
        "kafka://a:9092/rung (c0ffee)",
        "2 active, 1 paused",
        "searcher  10.0.0.7  experiments 0,2; placements 0,2",
        "4,321",
        "1 min 01 s",
        "searcher-intake  placements    2  2 0",
        "gpu        2     16     4        3",
        "2026-01-01T00:00:00Z",
        "6,001 of 6,006 records",
        "none unfinished",
    ):
        assert words in text, text


def test_what_is_wrong_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Brokers, topics, services, what is due, what waits, dead letters; one line each."""
    status = _status()
    status.brokers.append(Broker(id=2, address=None, answers=False))
    status.topics[0].leaderless = [1]
    status.topics[0].behind = [0, 1]
    status.replicas["scheduler"] = []
    status.deciders[0].pending = 12
    status.deciders[0].broken = {"k3v9x2ab": "ValueError: no"}
    status.problems = ["searcher-intake: it does not answer"]
    status.consumers[0].still = [0]
    status.pools.append(PoolStatus(name="compute", agents=0, slots=0, idle=0, waiting=16))
    status.newest_letters[0].time = "2026-01-01T01:30:00.000Z"
    status.seals = SealStatus(records=9, unsealed=9, since="2026-01-01T01:58:59.000Z")
    status.unfinished_imports.append(
        UnfinishedImport(exported_from="abc", records=7, begun="t", problem="run it again")
    )
    status.judge(NOW)
    assert status.problems == [
        "broker 2 (gone) does not answer",
        "pools: partition 1 has no leader",
        "pools: a replica of partition 0, 1 is behind",
        "run it again",
        "scheduler: no replica runs",
        "searcher: 12 decisions are due",
        "searcher: cannot go on with k3v9x2ab: ValueError: no",
        "searcher-intake: stands still, 2 records behind on placements",
        "pool compute: 16 allocations wait, and it has no agent",
        "dead letters: 1 open, the newest at 2026-01-01T01:30:00.000Z by searcher",
        (
            "seals: the ledger is not sealed (9 records, the oldest of 2026-01-01T01:58:59.000Z):"
            " give all replicas of checkpoint-gc the same secret in RUNG_SEAL_KEY"
        ),
        "searcher-intake: it does not answer",
    ]
    print_status(status)
    assert capsys.readouterr().out.startswith("WRONG: 12\n  broker 2 (gone) does not answer\n")


@pytest.mark.parametrize(
    ("lag", "expected"),
    [(10_000, []), (10_001, ["searcher-intake: 10,001 records behind on placements"])],
)
def test_a_relay_that_moves_may_be_a_little_behind(lag: int, expected: list[str]) -> None:
    """As for the alert: so many records are more than a moment's work."""
    found = Consumer(
        name="searcher-intake", topic="placements", lag=lag, lags=[lag], positions=[0]
    )
    assert found.problems() == expected


@pytest.mark.parametrize(
    "time", ["2026-01-01T01:00:00Z", "2025-01-01T00:00:00Z", "x", "2026-01-01"]
)
def test_an_old_dead_letter_is_no_problem(time: str) -> None:
    """It stays on record, so it would be one for ever; an hour long it is."""
    status = _status()
    status.newest_letters[0].time = time
    status.judge(NOW)
    assert status.problems == []


def test_keys_that_are_left_alone_are_one_line() -> None:
    """However many there are: they are of a level that the replicas do not know."""
    status = _status()
    (decider,) = status.deciders
    decider.left_alone, decider.level = 1200, 3
    status.judge(NOW)
    (problem,) = status.problems
    assert problem.startswith("searcher: 1,200 keys are left alone, of logic level 3: replace its")


@pytest.mark.parametrize(
    ("unsealed", "since", "words"),
    [
        (0, None, None),
        (2, "2026-01-01T01:59:30.000Z", None),
        (2, "2026-01-01T01:58:30.000Z", "2 of 9 records are not sealed, the oldest of 2026-01-01"),
        (9, "2026-01-01T01:58:30.000Z", "the ledger is not sealed .*RUNG_SEAL_KEY"),
        (9, "x", "not sealed"),
    ],
)
def test_what_is_wrong_with_seals(unsealed: int, since: str | None, words: str | None) -> None:
    """Seconds are no problem; a minute is, and what to do is said."""
    problems = SealStatus(records=9, unsealed=unsealed, since=since).problems(NOW)
    assert len(problems) == (words is not None)
    assert re.search(words or "", "".join(problems))
