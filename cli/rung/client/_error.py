"""Errors of a client of the gateway.

RungError
├── ExperimentFailed     an experiment ended without a result
└── ClientError
    ├── Unreachable      no server answers at that address
    ├── Unauthorized     the token is missing or wrong
    ├── NotFound         nothing has that id
    ├── Invalid          the experiment file or another input was refused, with paths
    ├── Conflict         the state of the thing does not allow it
    └── ServerFailed     the gateway could not do it
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rung.api import Experiment, ProblemDocument, ProblemItem, Trial
from rung.events import RungError

if TYPE_CHECKING:
    from rung.client._client import AsyncClient

_TRACEBACK: Final = "Traceback (most recent call last):"
_LINES: Final = 500
"""How much of a trial's log is searched for the traceback."""


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


class Forbidden(ClientError):
    """A permission is lacking; the message names it and the roles that have it."""


class NotFound(ClientError):
    """Nothing has that id, or it is deleted."""


class Invalid(ClientError):
    """The input was refused; `errors` lists every problem."""


class Conflict(ClientError):
    """The state of the object does not allow the request."""


class ServerFailed(ClientError):
    """The gateway failed."""


class ExperimentFailed(RungError):
    """An experiment ended without a result, or was canceled.

    Attributes:
        experiment: as it ended.
        traceback: of a failed trial's script; empty if it printed none.
    """

    def __init__(self, experiment: Experiment, traceback: str) -> None:
        self.experiment = experiment
        self.traceback = traceback
        message = f"experiment {experiment.id} {experiment.state}"
        if experiment.reason:
            message = f"{message}: {experiment.reason}"
        if experiment.best is None:
            message = f"{message}; no trial has a result"
        super().__init__(f"{message}\n\n{traceback}" if traceback else message)


_CLASSES: Final = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    412: Conflict,
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
    if status == 401:
        message = (
            f"{message} (sign in with `rung login`, or give a token with --token, RUNG_TOKEN, or a"
            " data folder)"
        )
    return kind(message, status=status, errors=errors, kind=about)


async def failure_of(client: "AsyncClient", experiment: Experiment) -> ExperimentFailed:
    """Return the failure of an experiment, with the traceback of its first failed trial."""
    failed: Trial | None = next(
        (trial for trial in experiment.trials if trial.state == "errored"), None
    )
    if failed is None and experiment.failures:
        failed = await client.trial(experiment.failures[0].trial_id)
    text = ""
    if failed is not None:
        page = await client.logs(failed.id, order="newest", limit=_LINES)
        lines = [line.text for line in reversed(page.items) if line.stream == "stderr"]
        text = last_traceback(lines) or failed.reason or failed.message or ""
    return ExperimentFailed(experiment, text)


def last_traceback(lines: list[str]) -> str:
    """Return the last traceback among printed lines, with all that follows; empty if none."""
    starts = [index for index, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    return "\n".join(lines[starts[-1] :]).rstrip() if starts else ""
