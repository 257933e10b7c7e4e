"""Keycloak as one process: a real identity provider, for tests of signing in.

It keeps all in memory, for which `make` has built it. A realm is made through its administration
API, from the document that Keycloak itself imports and exports.

Not handled: TLS, several nodes, a database.
"""

import contextlib
import json
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from servers.process import Server, ServerFailed, ServerProcess, free_port

VERSION: Final = "26.4.0"
_ADMIN: Final = "administrator"
_PASSWORD: Final = "keycloak-of-the-tests"  # noqa: S105 - of a server that only tests reach
_START_S: Final = 240.0
_ANSWER_S: Final = 30.0


class Keycloak(Server):
    """An identity provider whose realms are made by its users."""

    def __init__(self, folder: Path) -> None:
        """Prepare it; nothing is started yet.

        Args:
            folder: for its log.
        """
        self._port: Final = free_port()
        self._process = ServerProcess(
            [
                str(_program() or "kc.sh"),
                "start",
                "--optimized",
                "--cache=local",
                "--http-enabled=true",
                "--hostname-strict=false",
                "--http-host=127.0.0.1",
                f"--http-port={self._port}",
                f"--http-management-port={free_port()}",
                "--log-level=warn",
            ],
            log=folder.absolute() / "keycloak.log",
            environment={
                "KC_BOOTSTRAP_ADMIN_USERNAME": _ADMIN,
                "KC_BOOTSTRAP_ADMIN_PASSWORD": _PASSWORD,
                "JAVA_OPTS_KC_HEAP": "-Xms64m -Xmx512m",
                "JAVA_OPTS_APPEND": "-XX:TieredStopAtLevel=1",  # it runs for a minute
            },
        )

    @property
    def url(self) -> str:
        """Its address: `http://127.0.0.1:…`."""
        return f"http://127.0.0.1:{self._port}"

    def issuer(self, realm: str) -> str:
        """Return the issuer of a realm, from which clients discover the rest."""
        return f"{self.url}/realms/{realm}"

    def start(self) -> Self:
        """Start it, and wait until it answers.

        Raises:
            ServerFailed: it is not installed, or did not start.
        """
        if lacking := missing():
            raise ServerFailed(lacking)
        self._process.start(self._ready, within_s=_START_S)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def make_realm(self, realm: Mapping[str, Any]) -> None:
        """Make a realm from its document, with its users, groups and clients."""
        self.call("POST", "/realms", realm)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the administration API, with a path below `/admin`, and return its answer."""
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}/admin{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._token()}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310 - see above
                content = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise ServerFailed(f"{method} {path}: {error.code} {text}") from error
        return json.loads(content) if content else None

    def _token(self) -> str:
        form = {
            "grant_type": "password",
            "client_id": "admin-cli",
            "username": _ADMIN,
            "password": _PASSWORD,
        }
        data = urllib.parse.urlencode(form).encode()
        url = f"{self.url}/realms/master/protocol/openid-connect/token"
        with urllib.request.urlopen(url, data, timeout=_ANSWER_S) as answer:  # noqa: S310 - see above
            return str(json.load(answer)["access_token"])

    def _ready(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.url}/realms/master", timeout=1),  # noqa: S310 - see above
        ):
            return True
        return False


def missing() -> str | None:
    """Return why there is no Keycloak here, None if there is one."""
    if shutil.which("java") is None:
        return "there is no `java`, which Keycloak runs on"
    if _program() is None:
        return "there is no Keycloak: `make test` fetches it where Maven and Java are installed"
    return None


def _program() -> Path | None:
    program = Path(sys.executable).parent.parent / f"keycloak/keycloak-{VERSION}/bin/kc.sh"
    return program if program.exists() else None
