"""Whether a pool's present agents could ever give a trial its slots, and why not.

The rule is the scheduler's: a gang goes to one agent that is large enough, or fills several of
equal size. Agents that are being drained, have left or are lost give nothing; those that are
suspended will again. Whether slots are idle makes no difference: a trial that only waits for its
turn lacks nothing. An installation without any agent has just been started: nothing is reported
there. Nor is anything while the projections catch up: agents may have joined since.
"""

from collections import Counter
from collections.abc import Iterable

from rung.config.sections.resources import POOL
from rung.gateway.projections.pools import Pool
from rung.gateway.projections.read_models import ReadModels


def known_shortage(models: ReadModels, name: str, slots: int) -> str | None:
    """Return why a trial of so many slots cannot be placed, None also where it is not known."""
    return None if models.behind() else shortage(models.agents(), name, slots)


def unknown_pool(models: ReadModels, name: str) -> str | None:
    """Return that a pool does not exist, in words; None where it does, or it is not known.

    A pool exists once an agent has joined it or its policy was chosen; `default` always does.
    Projections that catch up may lack what came since.
    """
    known = sorted({POOL} | {it.name for it in models.agents() if it.agents or it.configured})
    if name in known or models.behind():
        return None
    return f"there is no pool {name[:100]!r}; there is {', '.join(known)}"


def shortage(pools: Iterable[Pool], name: str, slots: int) -> str | None:
    """Return why a trial of so many slots cannot be placed in a pool, in words, or None.

    Args:
        pools: all that there are.
        name: of the trial's pool.
        slots: that it wants at once.
    """
    offers = {pool.name: _sizes(pool) for pool in pools}
    sizes = offers.get(name, Counter())
    if _holds(sizes, slots) or not any(offers.values()):
        return None
    if not sizes:
        lack = f"pool {name} has no agent, so what is submitted to it waits until one joins"
    else:
        lack = (
            f"pool {name} cannot give a trial {_slots(slots)}, neither on one agent nor on several"
            " of equal size that it fills, so it waits until other agents join"
        )
    known = [f"{other} ({_told(of)})" for other, of in sorted(offers.items()) if of]
    return f"{lack}; there is {', '.join(known)}"


def _sizes(pool: Pool) -> Counter[int]:
    """Return how many agents there are of each size."""
    return Counter(
        len(agent.slots)
        for agent in pool.agents.values()
        if agent.state in {"joined", "suspended"}
    )


def _holds(sizes: Counter[int], slots: int) -> bool:
    return any(
        size >= slots or (size > 0 and slots % size == 0 and count >= slots // size)
        for size, count in sizes.items()
    )


def _told(sizes: Counter[int]) -> str:
    return ", ".join(f"{count} x {_slots(size)}" for size, count in sorted(sizes.items()))


def _slots(count: int) -> str:
    return f"{count} slot{'' if count == 1 else 's'}"
