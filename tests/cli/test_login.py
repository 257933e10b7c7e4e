"""`rung login`, `logout`, `whoami` and `token` against a scripted server."""

import io
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from cli.conftest import Rung
from rung.client import read_credential
from support.scripted_server import Scripted, json_answer, problem

METHODS = {"passwords": True, "provider": "Company", "device_codes": True, "user": None}
SIGNED_IN = {
    "user": "anna",
    "token": "rung_secret",
    "token_id": "t1",
    "expires_at": "2030-01-01T00:00:00.000Z",
}
TOKEN = {
    "id": "abc",
    "kind": "personal",
    "name": "ci",
    "user": "anna",
    "scope": None,
    "workspace": None,
    "created_at": "2030-01-01T00:00:00.000Z",
    "expires_at": None,
    "used_at": None,
    "current": False,
}


@pytest.fixture
def open_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """Return a server that one signs in at."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("RUNG_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("RUNG_TOKEN", raising=False)
    with Scripted() as server:
        server.token = None
        monkeypatch.setenv("RUNG_URL", server.url)
        server.on("/auth/methods", json_answer(METHODS))
        yield server


def _body(server: Scripted, path: str) -> Any:
    return msgspec.json.decode(server.requested(path)[-1].body)


def test_with_a_password(
    rung: Rung, open_server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is kept, and the password nowhere; commands are sent with it; it can end."""
    open_server.on("/auth/password", json_answer(SIGNED_IN))
    monkeypatch.setattr(sys, "stdin", io.StringIO("a long password\n"))
    done = rung("login", "--user", "anna")
    assert (done.code, done.err) == (0, "")
    assert "as anna" in done.out
    assert "rung_secret" not in done.out
    assert _body(open_server, "/auth/password")["password"] == "a long password"  # noqa: S105 - of a server that lives for one test
    kept = read_credential(open_server.url)
    assert kept is not None
    assert kept.token == "rung_secret"  # noqa: S105 - of a server that lives for one test

    open_server.token = "rung_secret"  # noqa: S105 - of a server that lives for one test
    open_server.on("/auth/methods", json_answer(METHODS | {"user": "anna"}))
    assert rung("whoami").out == f"anna at {open_server.url}\n"
    open_server.on("/auth/sign-out", json_answer({"token_id": "t1"}))
    assert rung("logout").code == 0
    assert read_credential(open_server.url) is None
    again = rung("logout")
    assert again.code != 0
    assert "not signed in" in again.err


def test_a_wrong_password(
    rung: Rung, open_server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3, as for any token that is refused; nothing is kept."""
    open_server.on("/auth/password", problem(401, "the name or the password is wrong"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("wrong\n"))
    done = rung("login", "--password", "--user", "anna")
    assert done.code == 3
    assert "the name or the password is wrong" in done.err
    assert read_credential(open_server.url) is None


def test_with_a_device_code(rung: Rung, open_server: Scripted) -> None:
    """The code is shown, and the token asked for until somebody has entered it."""
    code = {
        "device_code": "d",
        "user_code": "ABCD",
        "verification_uri": "https://id.example/enter",
        "verification_uri_complete": None,
        "expires_s": 60,
        "interval_s": 1,
    }
    open_server.on("/auth/device", json_answer(code))
    open_server.on(
        "/auth/device/token", json_answer({"interval_s": 0}, 202), json_answer(SIGNED_IN)
    )
    done = rung("login", "--device")
    assert done.code == 0, done.err
    assert "https://id.example/enter" in done.err
    assert "ABCD" in done.err
    assert len(open_server.requested("/auth/device/token")) == 2


def test_with_a_browser(
    rung: Rung, open_server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser brings the code to the loopback address; other states and paths are refused."""
    statuses: list[int] = []

    def get(url: str) -> None:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - of a server that lives for one test
                statuses.append(answer.status)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)

    def browse(_url: str) -> bool:
        asked = _body(open_server, "/auth/loopback")
        uri, state = asked["redirect_uri"], asked["state"]
        assert uri.startswith("http://127.0.0.1:")

        def visit() -> None:
            get(uri.rpartition("/")[0] + "/favicon.ico")
            get(f"{uri}?{urlencode({'state': 'another', 'code': 'stolen'})}")
            get(f"{uri}?{urlencode({'state': state, 'code': 'right'})}")

        threading.Thread(target=visit).start()
        return True

    open_server.on("/auth/loopback", json_answer({"url": "https://id.example/authorize"}))
    open_server.on("/auth/code", json_answer(SIGNED_IN))
    monkeypatch.setattr("webbrowser.open", browse)
    done = rung("login")
    assert done.code == 0, done.err
    redeemed = _body(open_server, "/auth/code")
    assert redeemed["code"] == "right"
    assert redeemed["code_verifier"] not in str(_body(open_server, "/auth/loopback"))
    assert statuses[:2] == [404, 400]


def test_what_cannot_be(rung: Rung, open_server: Scripted) -> None:
    """Both ways at once; a device code where there is no provider."""
    assert rung("login", "--device", "--password").code == 2
    open_server.on("/auth/methods", json_answer(METHODS | {"provider": None}))
    done = rung("login", "--device")
    assert done.code != 0
    assert "--password" in done.err


def test_tokens(rung: Rung, open_server: Scripted) -> None:
    """The secret is alone on standard output, for scripts; the list has none."""
    open_server.on("GET /tokens", json_answer({"items": [TOKEN]}))
    open_server.on("POST /tokens", json_answer({"token": TOKEN, "secret": "rung_new"}, 201))
    open_server.on("/tokens/ci/rotate", json_answer({"token": TOKEN, "secret": "rung_newer"}))
    open_server.on("/tokens/ci/revoke", json_answer({"id": "abc"}))
    assert "ci" in rung("token", "list").out
    made = rung("token", "create", "ci", "--scope", "read", "--never-expires")
    assert made.out == "rung_new\n"
    wanted = _body(open_server, "/tokens")
    assert (wanted["scope"], wanted["expires_days"]) == (["read"], None)
    assert rung("token", "rotate", "ci", "--overlap-hours", "1").out == "rung_newer\n"
    assert _body(open_server, "/tokens/ci/rotate")["overlap_s"] == 3600
    assert "revoked" in rung("token", "revoke", "ci").out


def test_a_password_of_ones_own(
    rung: Rung, open_server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The present one and the new one are read, and never printed."""
    open_server.on("/users/anna/password", json_answer({"user": "anna"}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("the present one\nthe next one\n"))
    done = rung("user", "password", "anna", "--own")
    assert done.code == 0, done.err
    sent = _body(open_server, "/users/anna/password")
    assert sent == {"password": "the next one", "current": "the present one"}
    assert "one" not in done.out.replace("has another", "")
