"""How many trials a published Hyperband starts: enough to refuse an absurd one early."""

import math


def trials_of(max_time: int, divisor: float, *, limit: int) -> int | None:
    """Return the number of trials over all brackets, None if it is above the limit."""
    brackets = 1
    reach = divisor
    while reach <= max_time:
        brackets += 1
        reach *= divisor
        if brackets > limit or reach / divisor > limit:
            return None
    total = 0
    for rounds in range(brackets):
        total += math.ceil(brackets * divisor**rounds / (rounds + 1))
        if total > limit:
            return None
    return total
