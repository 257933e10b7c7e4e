"""The start of a script whose framework trains with torch: Lightning, Transformers."""

import contextlib
from collections.abc import Iterator
from typing import Unpack

from rung import core
from rung.loop.ranks import together
from rung.loop.seeding import Arguments, deterministic, started
from rung.torch import exactness


@contextlib.contextmanager
def init(**arguments: Unpack[Arguments]) -> Iterator[core.Context]:
    """Yield the run that this process is; every generator is seeded.

    Where the run has several slots, this is one of its ranks, and they are together.

    Make the model inside. The arguments are those of `rung.core.init`.
    """
    with started(**arguments) as run:
        if deterministic(run):
            exactness.demand()
        with together(run):
            yield run
