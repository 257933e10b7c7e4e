"""The directory against whatever a company asks for, in any order: what holds for ever."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.directory.scenario import Office
from rung import rights
from rung.events import changes
from rung.events.directory import ADMIN, SYSTEM, ChangeRequested, DirectoryChanged
from rung.gateway.directory.state import (
    State,
    Thing,
    administrators,
    folded,
    rights_of,
    space_of,
    table_of,
    tokens_of,
)
from rung.sim.company import Company

pytestmark = pytest.mark.sim

_SEEDS = st.integers(0, 2**32)
_THINGS = (
    "users",
    "groups",
    "tokens",
    "workspaces",
    "projects",
    "assignments",
    "policies",
    "templates",
    "webhooks",
    "searches",
    "secrets",
    "models",
    "model_versions",
)

Held = dict[tuple[str, str | None], frozenset[str]]
"""User and place → what the user may there."""


def held(state: State) -> Held:
    """Return what everybody may everywhere."""
    places: list[str | None] = [None, *state.workspaces]
    return {(user, at): rights_of(state, user, at) for user in state.users for at in places}


def things(state: State) -> list[Thing]:
    """Return all that there is."""
    return [thing for name in _THINGS for thing in getattr(state, name).values()]


def check_indexes(state: State) -> None:
    """Names, digests, identities and expiries are those of what there is, each once."""
    names = Counter(
        (space, folded(thing.name)) for thing in things(state) if (space := space_of(thing))
    )
    assert max(names.values()) == 1
    indexed = {(space, name) for space, found in state.names.items() for name in found}
    assert indexed == names.keys()
    for thing in things(state):
        assert table_of(state, thing)[thing.id] is thing
        space = space_of(thing)
        assert space is None or state.names[space][folded(thing.name)] == thing.id
    assert state.digests == {it.digest: it.id for it in state.tokens.values()}
    due = [(it.expires_ms, it.id) for it in state.tokens.values() if it.expires_ms is not None]
    assert state.expiring == sorted(due)
    linked = [pair for user in state.users.values() for pair in user.identities]
    assert len(set(linked)) == len(linked) == len(state.identities)


def check_rights(before: Held, after: Held, asked: ChangeRequested, state: State) -> None:
    """Nobody may more than before but what who asked had, or has as the owner of what is new."""
    if asked.by == SYSTEM:
        return
    made = asked.change.workspace_id if isinstance(asked.change, changes.CreateWorkspace) else ""
    for (user, place), now in after.items():
        gained = now - before.get((user, place), before.get((user, None), frozenset()))
        if not gained or place == made:
            continue
        if isinstance(asked.change, changes.CreateUser):
            assert gained <= rights.EVERYBODY
            continue
        if isinstance(asked.change, changes.SetUserActive):
            continue  # it gives back what was given before, see below
        giver = before.get((asked.by, place), before[asked.by, None])
        assert gained <= giver, (asked, user, place, gained - giver)
    if isinstance(asked.change, changes.SetUserActive) and asked.change.active:
        for place in [None, *state.workspaces]:
            assert after[asked.change.user_id, place] <= before[asked.by, place]


@given(_SEEDS)
@settings(max_examples=60, deadline=None)
def test_what_holds_after_each_request(seed: int) -> None:
    """Whoever asks for whatever: the invariants of the theory of operation."""
    office, company = Office(), Company(seed)
    for _ in range(60):
        asked = company.next()
        before, text = held(office.state), msgspec.json.encode(office.state)
        (decided,) = office.tell(asked)
        state = office.state
        assert administrators(state), asked
        if not isinstance(decided, DirectoryChanged):
            assert msgspec.json.encode(state) == text, "a refusal changed something"
            continue
        check_indexes(state)
        after = held(state)
        check_rights(before, after, asked, state)
        assert after == {place: office.directory.rights_of(*place) for place in after}
        for user in state.users.values():
            if not user.active:
                assert tokens_of(state, user.id) == []
                assert rights_of(state, user.id) == frozenset()
        assert all(
            it.group_id is None or it.group_id in state.groups for it in state.assignments.values()
        )
        assert asked.by == SYSTEM or before[asked.by, None]
    assert office.directory.state == office.state


@given(_SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_snapshot_goes_on_as_what_it_was_made_of(seed: int) -> None:
    """The state has all that decides: one that was saved and loaded decides the same."""
    office, company = Office(), Company(seed)
    for _ in range(40):
        office.tell(company.next())
    other = Office()
    other.state = msgspec.json.decode(msgspec.json.encode(office.state), type=State)
    other.directory.state = msgspec.json.decode(msgspec.json.encode(office.state), type=State)
    for _ in range(40):
        asked = company.next()
        assert other.tell(asked) == office.tell(asked)


@given(_SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_requests_that_do_not_meet_may_come_in_any_order(seed: int, order: random.Random) -> None:
    """Each makes a user of its own: what there is in the end is the same, but for the record."""
    wanted = [
        changes.CreateUser(user_id=f"n{seed % 97}-{number}", name=f"new-{number}")
        for number in range(8)
    ]
    shuffled = list(wanted)
    order.shuffle(shuffled)
    found = []
    for some in (wanted, shuffled):
        office = Office()
        for change in some:
            office.done(change, by=ADMIN)
        found.append((office.state.users, office.state.version, office.state.names))
    assert found[0] == found[1]
