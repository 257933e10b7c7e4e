"""Exit codes of `rung`; scripts rely on them."""

from typing import Final

from rung.events import RungError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_FOUND: Final = 4
CANCELED: Final = 5
TROUBLE: Final = 6
INTERRUPTED: Final = 130

HELP: Final = """\b
Exit codes:
  0  success
  1  the result is negative: the experiment errored, which is that nothing
     usable came of it; the audit differs; `rung diff` found a difference
  2  wrong usage, or an experiment file or code folder that is refused
  3  no server or ledger answers, or it refuses the token
  4  nothing has that id
  5  the experiment was canceled
  6  another failure, with the reason in its message
  130  interrupted; what runs on the server goes on
"""

_OF_STATE: Final = {"completed": OK, "errored": FAILED, "canceled": CANCELED}


def of_state(state: str) -> int:
    """Return the exit code for the state in which an experiment ended."""
    return _OF_STATE.get(state, FAILED)


def of_error(error: RungError) -> int:
    """Return the exit code for an error; never 1, which stands for a negative result."""
    # Imported here: it takes a quarter of a second, and most commands succeed.
    from rung.client import Invalid, NotFound, Unauthorized, Unreachable  # noqa: PLC0415
    from rung.config.code_archive import InvalidCode  # noqa: PLC0415
    from rung.events.errors import InvalidConfig, LedgerUnavailable, ObjectUnavailable  # noqa: PLC0415

    if isinstance(error, Unreachable | Unauthorized | LedgerUnavailable | ObjectUnavailable):
        return UNREACHABLE
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, Invalid | InvalidConfig | InvalidCode):
        return USAGE
    return TROUBLE
