"""A cloud's metadata service on this machine, which says what the test wants."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Metadata:
    """What the service knows, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.token = "first"  # noqa: S105 - not a secret
        self.notice: dict[str, str] | None = None
        self.preempted = False
        self.asked: list[str] = []

    def take_away(self, seconds: float) -> None:
        """Announce the machine's end."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self.notice = {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.preempted = True

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        """Return status and body."""
        self.asked.append(f"{method} {path}")
        if path == "/latest/api/token" and method == "PUT":
            good = headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            return (200, self.token) if good else (400, "")
        if path == "/latest/meta-data/spot/instance-action":
            if headers["X-aws-ec2-metadata-token"] != self.token:
                return 401, ""
            return (200, json.dumps(self.notice)) if self.notice else (404, "")
        if path == "/computeMetadata/v1/instance/preempted":
            if headers["Metadata-Flavor"] != "Google":
                return 403, ""
            return 200, "TRUE" if self.preempted else "FALSE"
        return 404, ""


@contextmanager
def metadata_service() -> Iterator[Metadata]:
    """Serve until the context ends."""
    known = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, body = known.answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = _answer  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
