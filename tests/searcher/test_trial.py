"""What a report, a checkpoint and an end do to a trial."""

from rung.searcher.processor import close, forget, report, store
from rung.searcher.state import Trial


def trial() -> Trial:
    """Return a trial whose run goes to 9."""
    return Trial(index=0, bracket=0, hparams={"a": 1}, seed=1, length=9)


def test_one_report_may_reach_several_rungs() -> None:
    """Each rung keeps the first result at or past its length."""
    one = trial()
    for time, cost in ((4, 0.4), (10, 0.1)):
        assert report(one, time, time, cost, [1, 3, 9], timed=True)
    assert one.results == [0.4, 0.4, 0.1]


def test_what_was_reported_before_counts_once() -> None:
    """A report that is not later than the newest changes nothing."""
    one = trial()
    report(one, 3, 3, 0.5, [1, 3, 9], timed=True)
    assert not report(one, 3, 3, 0.1, [1, 3, 9], timed=True)
    assert not report(one, 2, 2, 0.1, [1, 3, 9], timed=True)
    assert (one.time, one.cost, one.results) == (3, 0.5, [0.5, 0.5])


def test_training_past_the_length_shows() -> None:
    """The report that reaches the length is as it should be; each one after it is an overrun."""
    one = trial()
    overruns = []
    for time in (8, 11, 12, 13):
        report(one, time, time, 0.5, [9], timed=True)
        overruns.append(one.overrun)
    assert overruns == [0, 0, 1, 2]


def test_a_length_is_delivered_once_validated_and_saved() -> None:
    """Neither the report nor the checkpoint alone is enough; a damaged checkpoint counts not."""
    one = trial()
    store(one, 9, "early")
    report(one, 8, 8, 0.5, [9], timed=True)
    assert not one.delivered
    report(one, 10, 10, 0.5, [9], timed=True)
    assert not one.delivered
    store(one, 10, "late")
    assert one.delivered
    forget(one, "late")
    assert not one.delivered


def test_the_two_newest_checkpoints_are_restored() -> None:
    """Newest first by steps, of equal ones the later; damaged ones are left out."""
    one = trial()
    for steps, name in ((100, "a"), (300, "c"), (200, "b"), (300, "d"), (50, "e")):
        store(one, steps, name)
    assert one.restore == ["d", "c"]
    forget(one, "d")
    assert one.restore == ["c", "b"]
    forget(one, "c")
    forget(one, "b")
    assert one.restore == ["a"]


def test_a_closed_trial_is_forgotten() -> None:
    """What only a living trial needs is not kept."""
    one = trial()
    store(one, 1, "a")
    close(one)
    assert (one.closed, one.hparams, one.results, one.checkpoints) == (True, {}, [], [])
