"""`rung secret`, `template`, `policy`, `config show`, and `rung submit --template`."""

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.conftest import Rung
from rung.cli.output import local_time
from support.scripted_server import Answer, Scripted, json_answer, problem

_HOME = "/workspaces/default"
_RECORDED: dict[str, Any] = {
    "id": "x1",
    "name": "quick",
    "version": 1,
    "created_at": "2026-01-31T12:00:00Z",
    "changed_at": "2026-02-01T12:00:00Z",
}
_CHANGED = local_time(_RECORDED["changed_at"])
_SECRET = _RECORDED | {"workspace_id": "default", "description": "a key", "digest": "ab"}
_DOCUMENT = "max_restarts: 1\nresources:\n  priority: 40\n"
_TEMPLATE = _RECORDED | {"workspace_id": "default", "document": _DOCUMENT, "by": "u1"}
_POLICY = _RECORDED | {
    "kind": "constraints",
    "document": "max_restarts: {at_most: 3}\n",
    "scope": "workspace vision",
    "by": "anna",
    "workspace_id": "w1",
    "project_id": None,
    "pool": None,
}


def _page(*items: Any) -> Answer:
    return json_answer({"items": items, "next_cursor": None})


def _sent(server: Scripted, path: str) -> Any:
    return msgspec.json.decode(server.requested(path)[-1].body)


def _typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have standard input say this, as a pipe does."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_a_secret_is_set_and_never_printed(
    server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its value comes from standard input; a last line break is no part of it."""
    server.on(f"POST {_HOME}/secrets", json_answer(_SECRET, 201))
    _typed(monkeypatch, "hush-hush\n")
    result = rung("secret", "set", "quick")
    assert (result.code, result.out) == (0, "Secret quick is set.\n")
    sent = _sent(server, f"{_HOME}/secrets")
    assert (sent["name"], sent["value"]) == ("quick", "hush-hush")

    _typed(monkeypatch, "hush-hush")
    shown = rung("secret", "set", "quick", "--json")
    assert shown.json == _SECRET
    assert "hush" not in shown.out + shown.err
    _typed(monkeypatch, "")
    empty = rung("secret", "set", "quick")
    assert (empty.code, empty.err) == (6, "Error: standard input has no value\n")


def test_secrets_are_listed_and_removed(server: Scripted, rung: Rung) -> None:
    """By name, of the workspace that is named."""
    server.on("/workspaces/vision/secrets", _page(_SECRET))
    server.on("/workspaces/vision/secrets/quick/delete", json_answer(_SECRET))
    listed = rung("secret", "list", "-w", "vision")
    assert listed.out.splitlines()[1].split("  ") == ["quick", _CHANGED, "a key"]
    assert rung("secret", "list", "-w", "vision", "--json").json == [_SECRET]
    removed = rung("secret", "delete", "quick", "-w", "vision")
    assert (removed.code, removed.out) == (0, "Secret quick is removed.\n")
    server.on("/workspaces/vision/secrets/quick/delete", problem(404, "there is no secret quick"))
    assert rung("secret", "delete", "quick", "-w", "vision").code == 4


def test_templates(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """They are set from a file, listed, printed as they are, and removed."""
    file = tmp_path / "quick.yaml"
    file.write_text(_DOCUMENT)
    server.on(f"POST {_HOME}/templates", json_answer(_TEMPLATE, 201))
    server.on(f"GET {_HOME}/templates", _page(_TEMPLATE))
    server.on(f"{_HOME}/templates/quick/delete", json_answer(_TEMPLATE))
    assert rung("template", "set", "quick", str(file)).out == "Template quick is set.\n"
    sent = _sent(server, f"{_HOME}/templates")
    assert (sent["name"], sent["document"]) == ("quick", _DOCUMENT)
    assert rung("template", "list").out.splitlines()[1].split("  ") == ["quick", _CHANGED]
    assert rung("template", "show", "quick").out == _DOCUMENT
    missing = rung("template", "show", "slow")
    assert "there is no template slow; `rung template list` lists them" in missing.err
    assert rung("template", "delete", "quick").out == "Template quick is removed.\n"

    file.write_bytes(b"\xff")
    assert "cannot be read as UTF-8 text" in rung("template", "set", "quick", str(file)).err


def test_policies(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """They have a kind and a place, and are printed with both and who set them."""
    file = tmp_path / "few.yaml"
    file.write_text(_POLICY["document"])
    server.on("POST /policies", json_answer(_POLICY, 201))
    server.on("GET /policies", _page(_POLICY))
    server.on("/policies/quick/delete", json_answer(_POLICY))
    command = ("policy", "set", "quick", str(file), "--kind", "constraints", "-w", "vision")
    assert rung(*command).out == "Policy quick of workspace vision is set.\n"
    sent = _sent(server, "/policies")
    assert (sent["kind"], sent["workspace"]) == ("constraints", "vision")
    assert rung("policy", "set", "quick", str(file)).code == 2
    row = ["quick", "constraints", "workspace vision", "anna", _CHANGED]
    assert rung("policy", "show").out.splitlines()[1].split("  ") == row
    assert "max_restarts: {at_most: 3}" in rung("policy", "show", "quick").out
    assert rung("policy", "show", "--json").json == [_POLICY]
    assert "there is no policy slow" in rung("policy", "show", "slow").err
    assert rung("policy", "delete", "quick").out == "Policy quick is removed.\n"


def test_config_show(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """Each value is printed with its origin, and warnings on standard error."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    found = {
        "config": {"name": "x"},
        "values": [
            {"path": "name", "value": "x", "origin": "line 1"},
            {"path": "max_restarts", "value": 1, "origin": "template quick"},
        ],
        "warnings": ["max_restarts is replaced"],
    }
    server.on("POST /config/resolve", json_answer(found))
    command = ("config", "show", str(file), "--template", "quick")
    result = rung(*command)
    assert result.out == "name          'x'  # line 1\nmax_restarts  1  # template quick\n"
    assert result.err == "Warning: max_restarts is replaced\n"
    sent = _sent(server, "/config/resolve")
    assert (sent["source"], sent["template"]) == ("name: x\n", "quick")
    assert rung(*command, "--json").json == found


def test_a_template_of_a_submission(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """It is named to the server, which merges."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    answer = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": []}
    server.on("POST /experiments", json_answer(answer, 201))
    assert rung("submit", str(file), "--template", "quick").code == 0
    assert server.requested("/experiments")[-1].query == {"template": "quick"}
