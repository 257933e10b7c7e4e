"""Exact resuming with Keras: within an epoch, bit for bit, one curve on n slots.

Importing it checks the private interfaces that it needs, which are all in `seams`.
"""

from rung.keras.exact.seams import ADD_ON

ADD_ON.check()

from rung.keras.exact.fit import ExactFit  # noqa: E402 - behind the check

__all__ = ["ADD_ON", "ExactFit"]
