"""Errors of a client of the gateway.

RungError
└── ClientError
├── Unreachable      no server answers at that address
├── Unauthorized     the token is missing or wrong
├── NotFound         nothing has that id
├── Invalid          the experiment file or another input was refused, with paths
├── Conflict         the state of the thing does not allow it
└── ServerFailed     the gateway could not do it
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from rung.api import ProblemDocument, ProblemItem
from rung.events import RungError


class ClientError(RungError):
    """The gateway was not reached, or refused a request.

    Attributes:
        status: HTTP's status code; 0 if there was no answer.
        errors: the single problems of the request.
        kind: the problem's type, such as `urn:rung:problem:not-found`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        errors: Sequence[ProblemItem] = (),
        kind: str = "about:blank",
    ) -> None:
        self.status = status
        self.errors = list(errors)
        self.kind = kind
        super().__init__(message)


class Unreachable(ClientError):
    """No server answers, or the connection broke repeatedly."""

    retriable = True


class Unauthorized(ClientError):
    """The token is missing or wrong."""


class NotFound(ClientError):
    """Nothing has that id, or it is deleted."""


class Invalid(ClientError):
    """The input was refused; `errors` lists every problem."""


class Conflict(ClientError):
    """The state of the object does not allow the request."""


class ServerFailed(ClientError):
    """The gateway failed."""


_CLASSES: Final = {
    400: Invalid,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}
_document = msgspec.json.Decoder(ProblemDocument)


def error_of(status: int, body: bytes) -> ClientError:
    """Return the error of an answer; an answer that is no problem document is quoted."""
    errors: Sequence[ProblemItem] = ()
    about = "about:blank"
    try:
        problem = _document.decode(body)
    except msgspec.DecodeError:
        text = body[:200].decode(errors="replace").strip()
        message = f"the server answered {status}: {text or 'nothing'}"
    else:
        message, errors, about = problem.detail, problem.errors or (), problem.type
    kind = _CLASSES.get(status, ServerFailed if status >= 500 else ClientError)
    if kind is Unauthorized:
        message = f"{message} (give the token with --token, RUNG_TOKEN, or a data folder)"
    return kind(message, status=status, errors=errors, kind=about)
