"""Dataset proxy: a wrapper of a data set that forwards attributes to it.

In a worker, torch's `get_worker_info().dataset` is the wrapper: what a script's `worker_init_fn`
sets there (the records of this worker, a file that it opens) belongs to the data set.
"""

from typing import Any

_OWN = ("__", "rung_")


class Forwarding:
    """Has attributes named `rung_…` of its own; all others are those of `rung_inner`."""

    rung_inner: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_OWN):
            raise AttributeError(name)
        return getattr(self.rung_inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(_OWN):
            object.__setattr__(self, name, value)
        else:
            setattr(self.rung_inner, name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith(_OWN):
            object.__delattr__(self, name)
        else:
            delattr(self.rung_inner, name)
