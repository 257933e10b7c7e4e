"""Exact resuming with Transformers: within an epoch, bit for bit, one curve on n slots.

Importing it checks the private interfaces that it needs, which are all in `seams`.
"""

from rung.transformers.exact.seams import ADD_ON

ADD_ON.check()

from rung.transformers.exact.training import ExactTraining  # noqa: E402 - behind the check

__all__ = ["ADD_ON", "ExactTraining"]
