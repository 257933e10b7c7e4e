"""The guide for several teams, followed command by command with a real identity provider."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from docs.conftest import Reader
from servers.keycloak import Keycloak
from servers.process import free_port
from support.code_blocks import ROOT, blocks, missing_line
from support.user import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PAGE: Final = ROOT / "docs/TEAMS.md"
REALM: Final = "teams"
PASSWORD: Final = "the-password-of-each"  # noqa: S105 - of a server that only tests reach
PEOPLE: Final = {
    "anna": ["platform"],
    "vera": ["vision"],
    "otto": ["vision", "vision-leads"],
    "sam": ["speech"],
}
"""Users at the provider and their groups, as the page has them."""
REFUSED: Final = {"refused": 2, "locked-out": 3}
"""Exit codes of blocks whose last command fails, by what is written behind their person."""
_KEPT: Final = "trap 'pwd > ~/.folder; export -p | grep \" RUNG_\" > ~/.exports || true' EXIT\n"


class Person(Reader):
    """Somebody with a terminal of their own, in a folder that all have."""

    def __init__(self, home: Path, wheel: Path, folder: Path, browser: str) -> None:
        home.mkdir()
        super().__init__(home, wheel)
        self.folder = folder
        self._browser = browser

    def shell(self, commands: str, where: str, code: int = 0) -> None:
        """Run commands in a terminal that keeps what was exported."""
        kept = "[ ! -e ~/.exports ] || source ~/.exports\n"
        super().shell(f"{kept}{_KEPT}export BROWSER={self._browser!r}\n{commands}", where, code)


class _Receiver(BaseHTTPRequestHandler):
    """A receiver of webhooks, which takes whatever comes."""

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Receiver)
        self.server.got.append(event)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Receiver(ThreadingHTTPServer):
    """The server of it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.got: Final[list[dict[str, Any]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Company:
    """Those who read the page, their folder, and the identity provider."""

    def __init__(self, folder: Path, wheel: Path, environment: Path, keycloak: Keycloak) -> None:
        self.folder = folder / "company"
        self.folder.mkdir()
        self.keycloak = keycloak
        self.port = free_port()
        self.receiver = Receiver()
        self._home, self._wheel, self._rung = folder, wheel, environment
        self._people: dict[str, Person] = {}
        self._processes: list[int] = []
        self.replaced: Final = {
            "https://rung.example.org": f"http://127.0.0.1:{self.port}",
            "https://id.example.org/realms/company": keycloak.issuer(REALM),
            "127.0.0.1:8080": f"127.0.0.1:{self.port}",
            "https://hooks.example.org": f"http://127.0.0.1:{self.receiver.server_port}",
            "--webhooks-allow-network 10.0.0.0/8": (
                "--webhooks-allow-network 127.0.0.0/8 --webhooks-allow-http"
            ),
            "--allow-network 10.0.0.0/8": "--allow-network 127.0.0.0/8 --allow-http",
        }

    def follow(self) -> None:
        """Do everything on the page."""
        last = None
        for block in blocks(PAGE):
            where, text = f"{PAGE.name}:{block.line}", self.here(block.text)
            match block.language, block.name.split():
                case "json", ["clients.json"]:
                    self._register(json.loads(text))
                case "sh", [name, *how]:
                    last = self.person(name)
                    if "rung service gateway" in text:
                        self._enter_secret()
                        text += "\njobs -p > ~/.services\n"
                    last.shell(text, where, code=REFUSED[how[0]] if how else 0)
                    self._note_processes(last)
                case "text", []:
                    assert last is not None
                    missing = missing_line(text, last.printed)
                    assert missing is None, f"{where}: {missing!r} is not in\n{last.printed}"
                case "python" | "yaml", [name]:
                    (self.folder / name).parent.mkdir(exist_ok=True)
                    (self.folder / name).write_text(text)
                case _:
                    raise AssertionError(f"{where}: what is to be done with this?")

    def here(self, text: str) -> str:
        """Return a text of the page with the addresses of this machine."""
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        return text

    def person(self, name: str) -> Person:
        """Return somebody, who has Rung installed."""
        if name not in self._people:
            script = Path(__file__).with_name("sign_in.py")
            browser = f"{sys.executable} {script} {name} {PASSWORD} %s"
            made = Person(self._home / name, self._wheel, self.folder, browser)
            (made.home / "rung-env").symlink_to(self._rung)
            self._people[name] = made
        return self._people[name]

    def _register(self, clients: dict[str, Any]) -> None:
        """Import the clients that the page has, as the administrator of the provider does."""
        self.keycloak.call("POST", f"/realms/{REALM}/partialImport", clients)

    def _enter_secret(self) -> None:
        """Put the secret that the provider drew where the page has it."""
        path = f"/realms/{REALM}/clients"
        [client] = self.keycloak.call("GET", f"{path}?clientId=rung")
        secret = self.keycloak.call("GET", f"{path}/{client['id']}/client-secret")["value"]
        (self.folder / "keys/oidc").write_text(secret + "\n")

    def _note_processes(self, person: Person) -> None:
        if (found := person.home / ".services").exists():
            self._processes = [int(line) for line in found.read_text().split()]

    def close(self) -> None:
        """End the services, and wait until they have."""
        self.receiver.shutdown()
        self.receiver.server_close()
        for process in self._processes:
            os.kill(process, signal.SIGTERM)
        for process in self._processes:
            wait_for(lambda it=process: not _lives(it), "the services have ended")  # type: ignore[misc]


def _lives(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _realm() -> dict[str, Any]:
    """Return the provider's realm before the page: people and groups."""
    return {
        "realm": REALM,
        "enabled": True,
        "sslRequired": "none",
        "groups": [{"name": name} for name in sorted({it for of in PEOPLE.values() for it in of})],
        "users": [
            {
                "username": name,
                "enabled": True,
                "email": f"{name}@example.org",
                "firstName": name.capitalize(),
                "lastName": "Example",
                "groups": [f"/{group}" for group in groups],
                "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
            }
            for name, groups in PEOPLE.items()
        ],
    }


@pytest.fixture
def company(keycloak: Keycloak, installed: Path, wheel: Path, tmp_path: Path) -> Iterator[Company]:
    """Return the company; its services end with the test."""
    keycloak.make_realm(_realm())
    made = Company(tmp_path, wheel, installed / "rung-env", keycloak)
    yield made
    made.close()


def test_a_company_in_half_an_hour(company: Company) -> None:
    """Each command of the page does what the page says, in order, with a real provider."""
    company.follow()
    wait_for(
        lambda: {"first", "nightly"} <= {_name(it) for it in company.receiver.got},
        "the receiver was told of both ends",
    )


def _name(event: dict[str, Any]) -> str | None:
    """Return the name of the experiment whose end a webhook tells."""
    if event["type"] != "rung.experiment.ended.v1":
        return None
    name: str | None = event["data"].get("experiment_name")
    return name
