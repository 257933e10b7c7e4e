"""A parent with a framework imported: forks all ranks of a run, as an agent does.

    python -m frontdoors.ranks_runner frontdoors.keras_ranks

An order is a list of orders, one for each rank. The first rank that fails ends the others. The
answer is the exit code of each rank.
"""

import importlib
import json
import os
import signal
import sys

from frontdoors.runner import become


def main() -> None:
    """Serve orders until the end of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks may print while they are imported
    module = importlib.import_module(sys.argv[1])
    if hasattr(module, "warm_up"):
        module.warm_up()
    for line in sys.stdin:
        ranks: dict[int, int] = {}
        for rank, order in enumerate(json.loads(line)):
            child = os.fork()
            if child == 0:
                os._exit(become(module, order))
            ranks[child] = rank
        answers.write(json.dumps(reaped(ranks)) + "\n")
        answers.flush()


def reaped(ranks: dict[int, int]) -> list[int]:
    """Return how each rank ended; one that fails takes the others with it."""
    codes = [0] * len(ranks)
    alive = dict(ranks)
    while alive:
        child, status = os.wait()
        codes[alive.pop(child)] = code = os.waitstatus_to_exitcode(status)
        if code:
            for other in alive:
                os.kill(other, signal.SIGKILL)
    return codes


if __name__ == "__main__":
    main()
    os._exit(0)  # what frameworks clean up at an exit takes them seconds
