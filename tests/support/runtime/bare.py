"""A processor by itself, called as the runtime calls it."""

from typing import Generic

from rung.events import Payload
from rung.runtime.processor.processor import Processor, S, types_of


class Bare(Generic[S]):
    """Skips what the processor does not handle; nothing may be decided after its end."""

    def __init__(self, processor: Processor[S]) -> None:
        self._processor = processor
        self._types = types_of(processor.handles)

    def initial(self, key: str) -> S:
        """Return the state of a key of which nothing is known."""
        return self._processor.initial(key)

    def evolve(self, state: S, event: Payload) -> None:
        """Fold a fact or a decision."""
        if event.TYPE in self._types:
            self._processor.evolve(state, event)

    def ended(self, state: S) -> bool:
        """Return whether the key has ended."""
        return self._processor.ended(state)

    def decide(self, state: S, fact: Payload) -> list[Payload]:
        """Return what follows from a fact that was just folded."""
        if fact.TYPE not in self._types:
            return []
        decisions = self._processor.decide(state, fact)
        assert not (decisions and self._processor.ended(state)), "it decides after its end"
        return decisions
