"""The simulator's invariants: each finds the fault that it is for."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import structlog

from rung.ledger import Draft, Ledger, Record
from rung.runtime import Rejected
from rung.runtime.projection import Merge
from rung.sim import run
from rung.sim.workload import stormy

pytestmark = pytest.mark.sim

Break = Callable[[pytest.MonkeyPatch], None]


def _delete_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("rung.checkpoint_gc.deletion.delete_checkpoint", lambda *_: 0)


def _record_no_deletion(patch: pytest.MonkeyPatch) -> None:
    """Commit before the facts are appended: what is lost on the way is not made again."""

    async def conclude(self: Any, drafts: Sequence[Draft], position: int) -> None:
        await self._ledger.commit(self._name, *self._place, position)
        if drafts:
            await self._ledger.append(drafts)

    patch.setattr("rung.runtime.sink.sink._Acting._conclude", conclude)


def _relay_at_most_once(patch: pytest.MonkeyPatch) -> None:
    async def append_and_commit(
        ledger: Ledger,
        drafts: Sequence[Draft],
        consumer: str,
        place: tuple[str, int],
        position: int,
    ) -> list[int]:
        await ledger.commit(consumer, *place, position)
        return await ledger.append(drafts)

    patch.setattr("rung.runtime.consumer.append_and_commit", append_and_commit)


def _raise_in_a_projection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("rung.gateway.projections.experiment_fold._evolve_search", lambda *_: 1 / 0)


def _skip_a_fact_at_each_start(patch: pytest.MonkeyPatch) -> None:
    class Skipping(Merge):
        def fold(self, facts: Sequence[Record]) -> list[Rejected]:
            goes_on = any(self.positions.values()) and not hasattr(self, "began")
            self.began = True
            return super().fold(facts[1:] if goes_on and len(facts) > 1 else facts)

    patch.setattr("rung.runtime.projection.runner.Merge", Skipping)


def _never_release_slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("rung.sim.scenario._LOOKED_AT", 1.0)
    patch.setattr("rung.gateway.projections.pools._release", lambda *_: None)


def _take_any_end_for_a_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("rung.searcher.processor._FollowUp._judge", lambda _, __, fate: fate)


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (_delete_nothing, "files of other checkpoints"),
        (_record_no_deletion, "retired: .*deleted: "),
        (_relay_at_most_once, "searches ended|retired"),
        (_raise_in_a_projection, "dead letters|ZeroDivisionError"),
        (_skip_a_fact_at_each_start, "differs from a fresh fold|folded"),
        (_never_release_slots, "what runs"),
        (_take_any_end_for_a_result, "without a result"),
    ],
)
def test_a_fault_is_found(break_it: Break, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within some seeds, by the invariant that is about it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        _run_seeds("random" if break_it is _take_any_end_for_a_result else "asha")


def _run_seeds(method: str) -> None:
    for seed in range(40):
        run(stormy(method), seed)
