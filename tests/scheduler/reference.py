"""The scheduler's rules a second time, as plainly as they can be written and as slowly."""

from rung.events import Payload
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AllocationReleased,
    AllocationRequested,
    AllocationWithdrawn,
)


class Reference:
    """One pool; says in few words what must be decided."""

    def __init__(self) -> None:
        self.slots: dict[str, list[int]] = {}
        self.incarnations: dict[str, int] = {}
        self.waiting: list[AllocationRequested] = []
        self.running: dict[str, AllocationRequested] = {}
        self.parts: dict[tuple[str, str], list[int]] = {}
        """(allocation, agent) → slots, in order of granting."""
        self.lost: set[str] = set()
        self.signaled: dict[str, str] = {}

    def tell(self, fact: Payload) -> list[str]:
        """Fold a fact and return what must be decided."""
        said: list[str] = []
        match fact:
            case AgentJoined():
                if fact.incarnation > self.incarnations.get(fact.agent_id, -1):
                    said += self._gone(fact.agent_id, "was started again")
                    self.incarnations[fact.agent_id] = fact.incarnation
                    self.slots[fact.agent_id] = [slot.id for slot in fact.slots]
            case AgentLeft() if self._is_current(fact.agent_id, fact.incarnation):
                said += self._gone(fact.agent_id, "left")
            case AgentLost() if self._is_current(fact.agent_id, fact.incarnation):
                said += self._gone(fact.agent_id, "was silent for 31.2 s")
            case AllocationRequested():
                known = [*(request.allocation_id for request in self.waiting), *self.running]
                if fact.allocation_id not in known:
                    self.waiting.append(fact)
            case AllocationWithdrawn():
                said += self._withdraw(fact.allocation_id, fact.how)
            case AllocationReleased() if self._is_current(fact.agent_id, fact.incarnation):
                self.parts.pop((fact.allocation_id, fact.agent_id), None)
                self._forget()
                if fact.failed:
                    said += self._stop(fact.allocation_id, "kill")
            case _:
                pass
        return said + self._start(zero=False) + self._start(zero=True)

    def idle(self, agent_id: str) -> list[int]:
        """Return an agent's idle slots."""
        taken = [s for (_, agent), slots in self.parts.items() if agent == agent_id for s in slots]
        return [slot for slot in self.slots[agent_id] if slot not in taken]

    def possible(self, slots: int) -> bool:
        """Return whether an idle pool could serve a request."""
        sizes = [len(found) for found in self.slots.values()]
        if slots == 0:
            return bool(sizes)
        return any(size >= slots for size in sizes) or any(
            size and slots % size == 0 and sizes.count(size) * size >= slots for size in sizes
        )

    def held(self, experiment_id: str) -> int:
        """Return how many slots an experiment holds."""
        return sum(
            len(slots)
            for (name, _), slots in self.parts.items()
            if self.running[name].experiment_id == experiment_id
        )

    def _is_current(self, agent_id: str, incarnation: int) -> bool:
        return agent_id in self.slots and self.incarnations[agent_id] == incarnation

    def _gone(self, agent_id: str, how: str) -> list[str]:
        said = []
        self.slots.pop(agent_id, None)
        for name, agent in list(self.parts):
            if agent == agent_id:
                del self.parts[name, agent]
                if name not in self.lost:
                    said.append(f"lost {name}: agent {agent_id} {how}")
                    self.lost.add(name)
        self._forget()
        return said

    def _forget(self) -> None:
        for name in list(self.running):
            if all(part != name for part, _ in self.parts):
                del self.running[name]
                self.lost.discard(name)
                self.signaled.pop(name, None)

    def _withdraw(self, name: str, how: str) -> list[str]:
        for request in self.waiting:
            if request.allocation_id == name:
                self.waiting.remove(request)
                return [f"dropped {name}"]
        return self._stop(name, how)

    def _stop(self, name: str, how: str) -> list[str]:
        if name not in self.running or name in self.lost:
            return []
        if self.signaled.get(name) in {"kill", how}:
            return []
        self.signaled[name] = how
        agents = [agent for part, agent in self.parts if part == name]
        return [f"signaled {name} {how}: {' '.join(agents)}"]

    def _start(self, *, zero: bool) -> list[str]:
        said = []
        candidates = [request for request in self.waiting if (request.slots == 0) is zero]
        for request in sorted(candidates, key=lambda found: found.priority):
            limit = request.max_slots
            over = limit is not None and self.held(request.experiment_id) + request.slots > limit
            if over or not self.possible(request.slots):
                continue
            place = self._place(request.slots)
            if not place:
                break
            self.waiting.remove(request)
            self.running[request.allocation_id] = request
            for agent_id, slots in place:
                self.parts[request.allocation_id, agent_id] = slots
            shares = " ".join(f"{agent}{slots}".replace(" ", "") for agent, slots in place)
            said.append(f"granted {request.allocation_id}: {shares}")
        return said

    def _place(self, slots: int) -> list[tuple[str, list[int]]]:
        if slots == 0:
            return self._place_none()
        room = sorted((len(self.idle(agent)), agent) for agent in self.slots)
        for idle, agent in room:
            if idle >= slots:
                return [(agent, self.idle(agent)[:slots])]
        for size in range(slots - 1, 0, -1):
            whole = sorted(a for a, s in self.slots.items() if len(s) == size == len(self.idle(a)))
            if slots % size == 0 and len(whole) * size >= slots:
                return [(agent, self.idle(agent)) for agent in whole[: slots // size]]
        return []

    def _place_none(self) -> list[tuple[str, list[int]]]:
        def load(agent_id: str) -> int:
            return sum(
                1 for (_, agent), taken in self.parts.items() if agent == agent_id and not taken
            )

        loads = sorted((load(agent), agent) for agent in self.slots)
        return [(loads[0][1], [])] if loads and loads[0][0] < 100 else []
