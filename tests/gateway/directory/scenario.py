"""Requests to the directory, one after another, as a processor's fold decides them."""

from typing import Any

from rung.events.changes import Change
from rung.events.directory import ADMIN, ROOT, ChangeRefused, ChangeRequested, DirectoryChanged
from rung.gateway.directory.directory import Directory
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.directory.state import State

DAY_MS = 24 * 3600 * 1000


class Office:
    """A directory that answers at once; beside it one that folds the decisions alone."""

    def __init__(self) -> None:
        self.processor = DirectoryProcessor()
        self.state: State = self.processor.initial("directory")
        self.directory = Directory()
        self.count = 0
        self.now_ms = 1_767_225_600_000

    def tell(self, fact: ChangeRequested) -> list[DirectoryChanged | ChangeRefused]:
        """Return the decision on a request, which is the same twice and changes nothing itself."""
        self.processor.evolve(self.state, fact)
        (decision,) = self.processor.decide(self.state, fact)
        assert self.processor.decide(self.state, fact) == [decision]
        assert isinstance(decision, DirectoryChanged | ChangeRefused)
        self.processor.evolve(self.state, decision)
        self.directory.fold(decision)
        self.directory.state.level = self.state.level
        assert self.directory.answer_to(fact.request_id) is decision
        return [decision]

    def ask(self, change: Change, *, by: str = ADMIN, **more: Any) -> tuple[str, str] | None:
        """Ask for a change; return why it is refused, by code and field, None if it is made."""
        self.count += 1
        fact = ChangeRequested(
            request_id=f"r{self.count}",
            by=by,
            at_ms=self.now_ms,
            change=change,
            **{"via": ROOT, **more},
        )
        (decision,) = self.tell(fact)
        if isinstance(decision, ChangeRefused):
            assert decision.reason
            return decision.code, decision.field
        return None

    def done(self, change: Change, **more: Any) -> None:
        """Ask for a change that is made."""
        refused = self.ask(change, **more)
        assert refused is None, (change, refused)
