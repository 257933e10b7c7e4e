"""Two agents of one id, restored folders and copies: who is admitted and who is refused."""

import msgspec

from rung.events.allocation import JoinRefused
from rung.scheduler.state import State
from support.scheduler.scenario import Pool, joined, left, lost, requested, resumed, suspended


def test_two_agents_of_one_id() -> None:
    """The second is refused by a sentence that names both; the first keeps its slots."""
    pool = Pool()
    pool.tell(joined("a", folder="F", host="one"), requested("e.0.1", 4))

    (refused,) = pool.tell(joined("a", 4, 99, folder="G", host="two"))

    assert isinstance(refused, JoinRefused)
    assert (refused.known, refused.in_use, refused.session) == (1, True, "G-a-99")
    for word in ("host one", "/agents/F", "host two", "/agents/G", "--agent-id"):
        assert word in refused.reason
    assert pool.state.refused == {"G-a-99": refused}
    assert pool.state.room.agents["a"].incarnation == 1
    assert pool.then(left("a", 99, folder="G")) == []
    assert pool.state.refused == {}
    assert pool.state.allocations.keys() == {"e.0.1"}


def test_the_other_agent_joins_once_the_first_is_gone() -> None:
    """An id is free when its agent left or was lost, whichever folder the next one has."""
    for gone in (left("a", 1, folder="F"), lost("a", 1)):
        pool = Pool()
        pool.tell(joined("a", folder="F"), joined("a", 4, 7, folder="G"), gone)

        assert pool.state.refused == {}
        assert pool.then(joined("a", 4, 8, folder="G"), requested("e.0.1", 4)) == [
            "granted e.0.1: a[0,1,2,3]"
        ]


def test_a_restart_of_the_same_folder_is_taken_at_once() -> None:
    """An agent that crashed joins again without waiting until it is taken for lost."""
    pool = Pool()
    pool.tell(joined("a", folder="F"), requested("e.0.1"))

    assert pool.then(joined("a", 4, 2, folder="F")) == ["lost e.0.1: agent a was started again"]


def test_a_restored_folder_is_told_the_incarnation_on_record() -> None:
    """A join with an older incarnation is answered, so that the agent can join above it."""
    pool = Pool()
    pool.tell(joined("a", 4, 9, folder="F"), lost("a", 9))

    assert pool.then(joined("a", 4, 5, folder="F")) == ["refused a 5, known 9"]
    assert pool.then(joined("a", 4, 10, folder="F"), requested("e.0.1")) == ["granted e.0.1: a[0]"]


def test_a_copy_with_the_same_incarnation_does_not_end_the_original() -> None:
    """What a refused copy says of an incarnation that is the original's, too, changes nothing."""
    pool = Pool()
    pool.tell(joined("a", 4, 3, folder="F"))
    copy = msgspec.structs.replace(joined("a", 4, 3, folder="F"), session="copy")
    goodbye = msgspec.structs.replace(left("a", 3), session="copy")

    assert pool.then(copy) == ["refused a 3, known 3 in use"]
    assert pool.then(suspended("a", 3, session="copy"), goodbye) == []
    assert pool.then(requested("e.0.1")) == ["granted e.0.1: a[0]"]


def test_joins_of_an_earlier_release_are_ignored_as_ever() -> None:
    """What is on record without a session gets no answer now, so that audits stay exact."""
    pool = Pool()

    assert pool.then(joined("a", 4, 5), joined("a", 4, 3), joined("a", 4, 5)) == []
    assert pool.then(joined("a", 4, 6, folder="F"), joined("a", 4, 7)) == []


def test_a_snapshot_of_an_earlier_release_is_read() -> None:
    """A state without what this release adds is a state in which there is none of it."""
    pool = Pool()
    pool.tell(joined("a"))
    old = msgspec.json.decode(msgspec.json.encode(pool.state))
    for name in ("joins", "suspended", "refused"):
        del old[name]

    assert msgspec.convert(old, State) == pool.state


def test_a_suspended_agent_gets_nothing_new() -> None:
    """What runs on it stays; what waits is placed as soon as it is resumed."""
    pool = Pool()
    pool.tell(joined("a", 2), requested("e.0.1"))

    assert pool.then(suspended("a"), requested("e.1.1"), requested("e.2.1", 0)) == []
    assert pool.state.allocations.keys() == {"e.0.1"}
    assert pool.then(resumed("a")) == ["granted e.1.1: a[1]", "granted e.2.1: a[]"]
    assert pool.then(suspended("a"), joined("a", 2, 2), requested("e.3.1"))[-1] == (
        "granted e.3.1: a[0]"
    )
