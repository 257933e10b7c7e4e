"""Errors as RFC 9457 problem documents, all of them made here.

A handler raises `Problem`; the middleware answers it, and turns everything else that goes wrong
into one: what aiohttp refuses, what the ledger or the objects refuse, and what nobody expected,
which is answered without internals, under an incident number that is in the log.
"""

import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web import RequestPayloadError

from rung.api import ProblemDocument, ProblemItem
from rung.events import EventTooLarge, RungError
from rung.gateway.scim.errors import error_of, is_scim
from rung.runtime.http.connection import BodyTooSlow

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2

_log = structlog.get_logger()


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(  # noqa: PLR0913 - what a problem document takes
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        errors: Sequence[ProblemItem] | None = None,
        headers: Mapping[str, str] | None = None,
        incident: str | None = None,
    ) -> None:
        """Describe the problem.

        Args:
            status: HTTP's status code.
            kind: the problem's type in few words, with dashes.
            detail: what is wrong and what would be right, for a person.
            errors: single things that are wrong with what was sent.
            headers: to be sent along.
            incident: by which the log knows it.
        """
        self.status = status
        self.kind = kind
        self.detail = _clean(detail)
        self.errors = None if errors is None else [_cleaned(item) for item in errors]
        self.headers = dict(headers or {})
        self.incident = incident
        super().__init__(detail)

    def response(self, request: web.Request) -> web.Response:
        """Return the problem document, or what SCIM has for it."""
        if is_scim(request.path):
            return error_of(self.status, self.kind, self.detail, self.headers)
        document = ProblemDocument(
            type=f"urn:rung:problem:{self.kind}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            instance=request.rel_url.raw_path,
            errors=self.errors,
            incident=self.incident,
        )
        return web.Response(
            status=self.status,
            body=msgspec.json.encode(document),
            headers={"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", **self.headers},
        )


def _clean(text: str) -> str:
    """Return a text as JSON can hold it: what a client sent may be no valid Unicode."""
    return text.encode("utf-8", "replace").decode()


def _cleaned(item: ProblemItem) -> ProblemItem:
    value = None if item.value is None else _clean(item.value)
    return ProblemItem(
        path=_clean(item.path), message=_clean(item.message), value=value, line=item.line
    )


def bad_parameter(name: str, message: str) -> Problem:
    """Return the problem of a query parameter or header that cannot be used."""
    return Problem(
        400,
        "bad-parameter",
        f"{name}: {message}",
        errors=[ProblemItem(path=name, message=message)],
    )


def not_found(what: str, name: str, hint: str) -> Problem:
    """Return the problem of an id that nothing has."""
    return Problem(404, "not-found", f"there is no {what} {name[:100]!r}; {hint}")


def unavailable(detail: str) -> Problem:
    """Return the problem of a part of the installation that does not answer now."""
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return Problem(503, "unavailable", detail, headers=headers)


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer whatever goes wrong with a problem document."""
    try:
        return await handler(request)
    except (Problem, BodyTooSlow, RequestPayloadError) as error:
        return _of_request(error).response(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _of_http(request, error).response(request)
    except RungError as error:
        _log.warning("refused", path=request.rel_url.raw_path, error=str(error))
        return _of_rung(error).response(request)
    except (ConnectionResetError, TimeoutError):
        raise  # the client is gone
    except Exception:  # noqa: BLE001 - answered without internals, and logged
        incident = secrets.token_hex(6)
        path = request.rel_url.raw_path
        _log.exception("failed", incident=incident, method=request.method, path=path)
        detail = f"something went wrong here; the server's log has it as incident {incident}"
        return Problem(500, "internal", detail, incident=incident).response(request)


def _of_request(error: Problem | BodyTooSlow | RequestPayloadError) -> Problem:
    match error:
        case Problem():
            return error
        case BodyTooSlow():
            return Problem(408, "too-slow", str(error))
        case _:
            return Problem(400, "malformed", f"the body cannot be read: {error}")


def _of_rung(error: RungError) -> Problem:
    if isinstance(error, EventTooLarge):
        hint = "or send less: in an experiment file an alias counts as often as it stands there"
        return Problem(413, "too-large", f"{error}; {hint}")
    return unavailable(str(error))


def _of_http(request: web.Request, error: web.HTTPException) -> Problem:
    path = request.path[:200]
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            detail = f"{path} takes {allowed}, not {request.method}"
            return Problem(405, "method-not-allowed", detail, headers={"Allow": allowed})
        case web.HTTPNotFound():
            hint = "GET /api/v1/openapi.json lists what there is"
            return Problem(404, "not-found", f"there is nothing at {path}; {hint}")
        case web.HTTPRequestEntityTooLarge():
            return Problem(413, "too-large", error.text or "the body is too large")
        case _:
            return Problem(error.status, "refused", error.text or error.reason)
