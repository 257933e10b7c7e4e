"""Problem documents in answer to what is no valid request; they do not repeat its text."""

from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from rung.api import ProblemDocument

_PROBLEM: Final = "application/problem+json"


class AnsweringProtocol(web.RequestHandler):
    """aiohttp's protocol, with problem documents in answer to what cannot be parsed."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what was sent
    ) -> web.StreamResponse:
        """Return the answer to a request that has no other."""
        # aiohttp repeats the header in its own refusal, which fails where it is no text.
        unexpected = isinstance(exc, UnicodeEncodeError) and hdrs.EXPECT in request.headers
        if not unexpected:
            self.log_exception("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        if unexpected:
            status, detail = 417, "the header Expect must be `100-continue`, or absent"
        elif isinstance(exc, LineTooLong):
            detail = f"a line or a header has more than {self.max_line_size:,} bytes"
        elif isinstance(exc, HttpProcessingError):
            detail = "this is no request of HTTP/1.1"
        else:
            detail = "something went wrong here; the server's log says more"
        response = web.Response(
            status=status,
            body=_problem(status, detail),
            headers={
                "Content-Type": _PROBLEM,
                "Server": "rung",
                "X-Content-Type-Options": "nosniff",
            },
        )
        response.force_close()
        return response


def _problem(status: int, detail: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    kind = phrase.lower().replace(" ", "-")
    return msgspec.json.encode(
        ProblemDocument(
            type=f"urn:rung:problem:{kind}",
            title=phrase,
            status=status,
            detail=detail,
            instance="/",
        )
    )


def _response(status: int, detail: str) -> bytes:
    body = _problem(status, detail)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {_PROBLEM}\r\n"
        f"Content-Length: {len(body)}\r\nServer: rung\r\nX-Content-Type-Options: nosniff\r\n"
        "Retry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


TIMEOUT: Final = _response(408, "the request's headers did not come in time")
TOO_LARGE: Final = _response(431, "the request's headers are too large in all")
BUSY: Final = _response(503, "there are too many connections; try again later")
