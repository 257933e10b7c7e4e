"""Services that give keys to identities, on this machine: STS, a container's and an instance's."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

ROLE = "arn:aws:iam::123456789012:role/rung"


class Issued(NamedTuple):
    """Temporary keys."""

    access_key: str
    secret_key: str
    session_token: str


class KeyService:
    """What the services know, and what they were asked."""

    def __init__(self, issue: Callable[[], Issued]) -> None:
        self.url = ""
        self.token = "a.web.identity"  # noqa: S105 - of the test
        self.lasts_s = 3600.0
        self.status = 200
        self.asked: list[str] = []
        self._issue = issue

    def answer(self, method: str, target: str, headers: Any) -> tuple[int, str]:
        """Return status and body."""
        parts = urlsplit(target)
        self.asked.append(f"{method} {parts.path}")
        if self.status != 200:
            return self.status, ""
        if method == "POST":
            return self._sts({name: found[0] for name, found in parse_qs(parts.query).items()})
        return self._role(method, parts.path, headers)

    def _role(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        match method, path:
            case "PUT", "/latest/api/token":
                return 200, self.token
            case "GET", "/latest/meta-data/iam/security-credentials/":
                return self._for(headers["X-aws-ec2-metadata-token"], "node")
            case "GET", "/latest/meta-data/iam/security-credentials/node":
                return self._for(headers["X-aws-ec2-metadata-token"], json.dumps(self._keys()))
            case "GET", "/v1/credentials":
                return self._for(headers["Authorization"], json.dumps(self._keys()))
            case _:
                return 404, ""

    def _for(self, token: str, body: str) -> tuple[int, str]:
        return (200, body) if token == self.token else (401, "")

    def _sts(self, query: dict[str, str]) -> tuple[int, str]:
        wanted = {"Action": "AssumeRoleWithWebIdentity", "RoleArn": ROLE}
        if query.get("WebIdentityToken") != self.token or not wanted.items() <= query.items():
            return 403, ""
        keys = self._keys()
        fields = ("AccessKeyId", "SecretAccessKey", "Expiration")
        body = "".join(f"<{name}>{keys[name]}</{name}>" for name in fields)
        return 200, (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleWithWebIdentityResult><Credentials>{body}"
            f"<SessionToken>{keys['Token']}</SessionToken></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )

    def _keys(self) -> dict[str, str]:
        issued = self._issue()
        until = datetime.now(UTC) + timedelta(seconds=self.lasts_s)
        return {
            "AccessKeyId": issued.access_key,
            "SecretAccessKey": issued.secret_key,
            "Token": issued.session_token,
            "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


@contextmanager
def key_service(issue: Callable[[], Issued]) -> Iterator[KeyService]:
    """Serve until the context ends."""
    known = KeyService(issue)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, body = known.answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = do_POST = _answer  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
