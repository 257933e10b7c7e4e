"""Tells what failed from what failed because of it.

When a rank dies, the others soon fail too: their connections to it break. Which of them is heard
of first is chance, so their words are known by what they say: that somebody else is gone.
"""

import re
from typing import Final

_ABOUT_ANOTHER: Final = re.compile(
    r"""
    Connection\ (?:closed|reset|refused) | Broken\ pipe | Socket\ (?:closed|Timeout)
    | remote\ (?:worker|process|peer|host) | by\ peer
    | ncclRemoteError | ncclSystemError | NCCL\ (?:error|WARN|communicator) | DistBackendError
    | gloo/transport | TCPStore
    | HorovodInternalError
    | UnavailableError | Task\ /job:worker
    | RanksApart:\ rank\ \d+\ is\ gone
    """,
    re.VERBOSE | re.IGNORECASE,
)


def is_aftermath(words: str) -> bool:
    """Return whether a failure's words say that another rank was lost."""
    return _ABOUT_ANOTHER.search(words) is not None
