"""The scheduler's rules a second time, as plainly as they can be written and as slowly."""

from msgspec import structs

from rung.events import Payload
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AgentResumed,
    AgentSuspended,
    AllocationReleased,
    DrainRequested,
    MoveRequested,
)
from rung.events.experiment import ResourcesChanged
from rung.events.trial import RunRequested, RunWithdrawn


class Reference:
    """One pool; says in few words what must be decided."""

    def __init__(self) -> None:
        self.slots: dict[str, list[int]] = {}
        self.drained: dict[str, list[int]] = {}
        """Agents that offer nothing more, and what they had."""
        self.suspended: dict[str, list[int]] = {}
        """Agents that offer nothing for the moment, and what they have."""
        self.places: dict[str, tuple[str, str]] = {}
        """Folder and host of agents that are there and say where they are."""
        self.incarnations: dict[str, int] = {}
        self.waiting: list[RunRequested] = []
        self.running: dict[str, RunRequested] = {}
        self.parts: dict[tuple[str, str], list[int]] = {}
        """(allocation, agent) → slots, in order of granting."""
        self.arrivals: dict[str, float] = {}
        self.count = 0
        self.claims: dict[str, tuple[float | None, list[str], str | None]] = {}
        """Trial → its arrival, the agents to avoid, the agent to go to."""
        self.wishes: dict[str, tuple[list[str], str | None]] = {}
        self.withdrawn: set[str] = set()
        self.lost: set[str] = set()
        self.signaled: dict[str, str] = {}

    def tell(self, fact: Payload) -> list[str]:  # noqa: C901, PLR0912 - one case per event
        """Fold a fact and return what must be decided."""
        said: list[str] = []
        match fact:
            case AgentJoined():
                said += self._join(fact)
            case DrainRequested() if self._is_current(fact.agent_id, fact.incarnation):
                for where in (self.slots, self.suspended):
                    if fact.agent_id in where:
                        self.drained[fact.agent_id] = where.pop(fact.agent_id)
            case AgentSuspended() if self._is_current(fact.agent_id, fact.incarnation):
                if fact.agent_id in self.slots:
                    self.suspended[fact.agent_id] = self.slots.pop(fact.agent_id)
            case AgentResumed() if self._is_current(fact.agent_id, fact.incarnation):
                if fact.agent_id in self.suspended:
                    self.slots[fact.agent_id] = self.suspended.pop(fact.agent_id)
            case AgentLeft() if self._is_current(fact.agent_id, fact.incarnation):
                said += self._gone(fact.agent_id, "left")
            case AgentLost() if self._is_current(fact.agent_id, fact.incarnation):
                said += self._gone(fact.agent_id, "was silent for 31.2 s")
            case RunRequested():
                known = [*(request.allocation_id for request in self.waiting), *self.running]
                if fact.allocation_id not in known:
                    self._wait(fact)
            case RunWithdrawn():
                said += self._withdraw(fact.allocation_id, fact.how)
            case AllocationReleased() if self._is_current(fact.agent_id, fact.incarnation):
                self.parts.pop((fact.allocation_id, fact.agent_id), None)
                self._forget()
                if fact.failed:
                    why = " (machine)" if fact.machine else ""
                    said += [f"{each}{why}" for each in self._stop(fact.allocation_id, "kill")]
            case ResourcesChanged():
                self._set_resources(fact)
            case _:
                pass
        asked = self._above_limit(fact) if isinstance(fact, ResourcesChanged) else []
        asked += self._move(fact) if isinstance(fact, MoveRequested) else []
        if isinstance(fact, DrainRequested) and self._is_current(fact.agent_id, fact.incarnation):
            names = [name for name, agent in self.parts if agent == fact.agent_id]
            asked = [n for n in names if self._stays(n) and n not in self.withdrawn]
        said += self._start(zero=False) + self._start(zero=True)
        for name in asked:
            self._signal(name)
        chosen = self._yield()
        for name in chosen:
            self._signal(name)
        return said + [
            f"signaled {name} preempt: {' '.join(self._on(name))}" for name in (*asked, *chosen)
        ]

    def idle(self, agent_id: str) -> list[int]:
        """Return an agent's idle slots."""
        taken = [s for (_, agent), slots in self.parts.items() if agent == agent_id for s in slots]
        own = (self.slots | self.suspended)[agent_id]
        return [slot for slot in own if slot not in taken]

    def possible(self, slots: int) -> bool:
        """Return whether an idle pool could serve a request."""
        return self._possible(slots, list(self.slots))

    def _possible(self, slots: int, agents: list[str]) -> bool:
        sizes = [len(self.slots[agent]) for agent in agents]
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
        return self._is_there(agent_id) and self.incarnations[agent_id] == incarnation

    def _is_there(self, agent_id: str) -> bool:
        return any(agent_id in where for where in (self.slots, self.drained, self.suspended))

    def _join(self, fact: AgentJoined) -> list[str]:
        """Take an agent in, or refuse it: an older incarnation, or another one of its name."""
        name, known = fact.agent_id, self.incarnations.get(fact.agent_id, -1)
        place = fact.folder_id, fact.hostname
        other = bool(fact.folder_id) and self.places.get(name, place) != place
        if fact.incarnation > known and not (self._is_there(name) and other):
            said = self._gone(name, "was started again")
            self.incarnations[name] = fact.incarnation
            self.slots[name] = [slot.id for slot in fact.slots]
            if fact.folder_id:
                self.places[name] = place
            return said
        repeated = fact.incarnation == known and self.places.get(name) == place
        if not fact.session or repeated:
            return []
        in_use = " in use" if self._is_there(name) else ""
        return [f"refused {name} {fact.incarnation}, known {known}{in_use}"]

    def _wait(self, fact: RunRequested) -> None:
        arrival, avoid, to = self.claims.pop(fact.spec.trial_id, (None, [], None))
        self.waiting.append(fact)
        self.arrivals[fact.allocation_id] = self.count if arrival is None else arrival
        self.wishes[fact.allocation_id] = (avoid, to)
        self.count += 1

    def _on(self, name: str) -> list[str]:
        return [agent for part, agent in self.parts if part == name]

    def _move(self, fact: MoveRequested) -> list[str]:
        """Note where a trial is to go; return what is to be asked to yield."""
        for name, request in self.running.items():
            if request.spec.trial_id == fact.trial_id and name not in self.lost:
                self.claims[fact.trial_id] = (self.arrivals[name], self._on(name), fact.to)
                stays = name not in self.signaled and name not in self.withdrawn
                return [name] if stays else []
        for request in self.waiting:
            if request.spec.trial_id == fact.trial_id:
                avoid, to = self.wishes[request.allocation_id]
                self.wishes[request.allocation_id] = (avoid, fact.to or to)
                return []
        if fact.to is not None:
            self.claims[fact.trial_id] = (None, [], fact.to)
        return []

    def _set_resources(self, fact: ResourcesChanged) -> None:
        def changed(request: RunRequested) -> RunRequested:
            if request.experiment_id != fact.experiment_id:
                return request
            return structs.replace(request, priority=fact.priority, max_slots=fact.max_slots)

        self.waiting = [changed(request) for request in self.waiting]
        self.running = {name: changed(request) for name, request in self.running.items()}

    def _above_limit(self, fact: ResourcesChanged) -> list[str]:
        """Return the fewest of the newest that must go for the others to be within the limit."""
        own = [
            name
            for name, request in self.running.items()
            if request.experiment_id == fact.experiment_id and request.slots and self._stays(name)
        ]
        own.sort(key=lambda name: self._order(self.running[name]), reverse=True)
        limit = fact.max_slots
        gone: list[str] = []
        for name in own:
            if limit is not None and self._sum(own) - self._sum(gone) > limit:
                gone.append(name)
        for name in gone[::-1]:
            without = [each for each in gone if each != name]
            if limit is not None and self._sum(own) - self._sum(without) <= limit:
                gone = without
        return gone

    def _sum(self, names: list[str]) -> int:
        return sum(self.running[name].slots for name in names)

    def _signal(self, name: str) -> None:
        self.signaled[name] = "preempt"
        claim: tuple[float | None, list[str], str | None] = (self.arrivals[name], [], None)
        self.claims.setdefault(self.running[name].spec.trial_id, claim)

    def _gone(self, agent_id: str, how: str) -> list[str]:
        said = []
        self.slots.pop(agent_id, None)
        self.drained.pop(agent_id, None)
        self.suspended.pop(agent_id, None)
        self.places.pop(agent_id, None)
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
                self.withdrawn.discard(name)

    def _withdraw(self, name: str, how: str) -> list[str]:
        for request in self.waiting:
            if request.allocation_id == name:
                self.waiting.remove(request)
                return [f"dropped {name}"]
        if name in self.running:
            self.withdrawn.add(name)
            self.claims.pop(self.running[name].spec.trial_id, None)
        return self._stop(name, how)

    def _stop(self, name: str, how: str) -> list[str]:
        if name not in self.running or name in self.lost:
            return []
        if self.signaled.get(name) in {"kill", how}:
            return []
        self.signaled[name] = how
        return [f"signaled {name} {how}: {' '.join(self._on(name))}"]

    def _order(self, request: RunRequested) -> tuple[int, float]:
        return request.priority, self.arrivals[request.allocation_id]

    def _allowed(self, request: RunRequested) -> list[str] | None:
        """Return the agents that a moved trial may go to, None for all."""
        avoid, to = self.wishes[request.allocation_id]
        if to in self.slots and len(self.slots[to]) >= request.slots:
            return [to]
        others = [agent for agent in self.slots if agent not in avoid]
        if len(others) < len(self.slots) and self._possible(request.slots, others):
            return others
        return None

    def _yield(self) -> list[str]:
        """Return who yields to what is more important."""
        chosen: list[str] = []
        while more := self._yield_besides(chosen):
            chosen += more
        return chosen

    def _yield_besides(self, chosen: list[str]) -> list[str]:
        parts, more, planned = dict(self.parts), list[str](), dict[str, int]()
        for name in (*self.running,):
            if not self._stays(name) or name in chosen:
                self._free(name)
        for request in sorted((r for r in self.waiting if r.slots), key=self._order):
            limit, experiment = request.max_slots, request.experiment_id
            held = sum(
                len(slots)
                for (n, _), slots in parts.items()
                if self.running[n].experiment_id == experiment
            ) + planned.get(experiment, 0)
            over = limit is not None and held + request.slots > limit
            if over or not self.possible(request.slots) or self._allowed(request) is not None:
                continue
            if not self._place(request.slots):
                found = self._in_the_way(request, [*chosen, *more])
                if not found:
                    break
                more += found
                for name in found:
                    self._free(name)
            planned[experiment] = planned.get(experiment, 0) + request.slots
            for agent_id, slots in self._place(request.slots):
                self.parts[f"planned {request.allocation_id}", agent_id] = slots
        self.parts = parts
        return more

    def _in_the_way(self, request: RunRequested, chosen: list[str]) -> list[str]:
        lesser = [
            name
            for name, other in self.running.items()
            if self._stays(name)
            and other.priority > request.priority
            and other.slots
            and name not in chosen
        ]
        parts, yielding = dict(self.parts), list[str]()
        for name in sorted(lesser, key=lambda n: self._order(self.running[n]), reverse=True):
            if not self._place(request.slots):
                self._free(name)
                yielding.append(name)
        fits = bool(self._place(request.slots))
        for name in yielding[::-1]:
            self.parts = dict(parts)
            rest = [other for other in yielding if other != name]
            for other in rest:
                self._free(other)
            if self._place(request.slots):
                yielding = rest
        self.parts = parts
        return yielding if fits else []

    def _stays(self, name: str) -> bool:
        return name not in self.signaled and name not in self.lost

    def _free(self, name: str) -> None:
        self.parts = {part: slots for part, slots in self.parts.items() if part[0] != name}

    def _start(self, *, zero: bool) -> list[str]:
        said = []
        candidates = [request for request in self.waiting if (request.slots == 0) is zero]
        for request in sorted(candidates, key=self._order):
            limit = request.max_slots
            over = limit is not None and self.held(request.experiment_id) + request.slots > limit
            if over or not self.possible(request.slots):
                continue
            allowed = self._allowed(request)
            place = self._place(request.slots, allowed)
            if not place and allowed is not None:
                continue
            if not place:
                break
            self.waiting.remove(request)
            self.running[request.allocation_id] = request
            for agent_id, slots in place:
                self.parts[request.allocation_id, agent_id] = slots
            shares = " ".join(f"{agent}{slots}".replace(" ", "") for agent, slots in place)
            said.append(f"granted {request.allocation_id}: {shares}")
        return said

    def _place(self, slots: int, allowed: list[str] | None = None) -> list[tuple[str, list[int]]]:
        agents = list(self.slots) if allowed is None else allowed
        if slots == 0:
            return self._place_none(agents)
        room = sorted((len(self.idle(agent)), agent) for agent in agents)
        for idle, agent in room:
            if idle >= slots:
                return [(agent, self.idle(agent)[:slots])]
        for size in range(slots - 1, 0, -1):
            whole = sorted(a for a in agents if len(self.slots[a]) == size == len(self.idle(a)))
            if slots % size == 0 and len(whole) * size >= slots:
                return [(agent, self.idle(agent)) for agent in whole[: slots // size]]
        return []

    def _place_none(self, agents: list[str]) -> list[tuple[str, list[int]]]:
        def load(agent_id: str) -> int:
            return sum(
                1 for (_, agent), taken in self.parts.items() if agent == agent_id and not taken
            )

        loads = sorted((load(agent), agent) for agent in agents)
        return [(loads[0][1], [])] if loads and loads[0][0] < 100 else []
