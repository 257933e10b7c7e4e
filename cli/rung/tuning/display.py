"""Progress of a search in a notebook; elsewhere it is that of `rung wait`."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rung.cli.commands.wait import progress
from rung.client import Experiment
from rung.client._handle import summary_html

Show = Callable[[Experiment], None]


@contextlib.contextmanager
def shown(url: str, *, quiet: bool) -> Iterator[Show]:
    """Yield a function that shows an experiment: a table, replaced each time.

    Args:
        url: of the experiment's page.
        quiet: show nothing.
    """
    display = None if quiet else _notebook_display()
    if display is None:
        with progress(quiet=quiet) as show:
            yield show
        return
    handle = display({"text/html": "…", "text/plain": "…"}, raw=True, display_id=True)

    def update(experiment: Experiment) -> None:
        text = f"{experiment.name} ({experiment.id}) {experiment.state}"
        shown = {"text/html": summary_html(experiment, url), "text/plain": text}
        handle.update(shown, raw=True)

    yield update


def _notebook_display() -> Any:
    """Return IPython's `display` where this process is the kernel of a notebook, else None."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # noqa: PLC0415 - there is a kernel, so it is installed

    return display
