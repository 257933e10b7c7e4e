"""`rung user`, `group`, `workspace`, `project` and `role`, against a gateway."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Rung
from rung.client import AsyncClient, Client, ClientError
from support.gateway.threaded import TOKEN, threaded


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a gateway that runs in a thread, and decides."""
    with threaded(tmp_path_factory.mktemp("objects")) as url:
        yield url


@pytest.fixture(autouse=True)
def _installation(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNG_URL", url)
    monkeypatch.setenv("RUNG_TOKEN", TOKEN)
    monkeypatch.setenv("RUNG_DATA", str(tmp_path))


def test_people(rung: Rung) -> None:
    """Users, service accounts and groups, from their creation to their end."""

    def out(*arguments: str) -> str:
        result = rung(*arguments)
        assert result.code == 0, result
        return result.out

    assert "User anna is created" in out("user", "create", "anna", "--email", "a@b.c")
    assert "Service account bot is" in out(
        *("user", "create", "bot", "--service", "--workspace", "default")
    )
    assert "anna" in out("user", "list")
    assert "bot" not in out("user", "list")
    assert "bot" in out("user", "list", "--service")
    assert "User anna is changed." in out("user", "edit", "anna", "--display-name", "Anna A.")
    assert "Anna A." in out("user", "show", "anna")
    assert "with 1 member and" in out("group", "create", "Team A", "--member", "anna")
    edited = out("group", "edit", "team a", "--name", "Team B", "--add", "admin")
    assert edited == "Group Team B is changed; it has 2 members.\n"
    assert "anna" in out("group", "show", "team b")
    assert "Team B" in out("group", "list")
    assert "it has 1 member." in out("group", "edit", "team b", "--remove", "admin")
    assert out("group", "delete", "team b") == "Group team b is deleted.\n"
    assert "revoked" in out("user", "deactivate", "anna")
    assert "active again" in out("user", "activate", "anna")
    assert "deactivated" in out("user", "deactivate", "bot", "--service")


def test_webhooks(rung: Rung) -> None:
    """From their creation to their end; the key that signs is printed where it is drawn."""

    def out(*arguments: str) -> str:
        result = rung("webhook", *arguments)
        assert result.code == 0, result
        return result.out

    created = out(
        *("create", "ops", "--url", "https://hooks.example.com/x", "--state", "errored"),
        *("--event", "rung.experiment.ended.v1", "--metric", "loss<0.1"),
    )
    assert "Webhook ops is created, and leads to hooks.example.com." in created
    assert "Signing key, shown this once: whsec_" in created
    assert "hooks.example.com" in out("list", "--workspace", "default")
    assert "errored" in out("show", "ops")
    assert out("edit", "ops", "--name", "alerts", "--off") == "Webhook alerts is changed.\n"
    refused = rung("webhook", "test", "alerts")
    assert (refused.code, "switched off" in refused.err) == (6, True)
    out("edit", "alerts", "--on")
    assert "whsec_" in out("rotate", "alerts")
    asked = json.loads(out("test", "alerts", "--json"))
    listed = json.loads(out("deliveries", "alerts", "--json"))
    assert [(each["id"], each["state"]) for each in listed] == [(asked["id"], "waiting")]
    assert "on its way again" in out("redeliver", "alerts", asked["id"])
    assert out("remove", "alerts") == "Webhook alerts is removed.\n"
    wrong = rung("webhook", "create", "x", "--url", "https://10.0.0.1/", "--log", "x")
    assert "not a public address" in wrong.err
    assert "such as 'accuracy>0.9'" in rung("webhook", "create", "x", "--metric", "loss").err


def test_places_and_roles(rung: Rung) -> None:
    """Workspaces, projects, and who may do what in them."""

    def out(*arguments: str) -> str:
        result = rung(*arguments)
        assert result.code == 0, result
        return result.out

    out("user", "create", "olga")
    made = out("workspace", "create", "vision", "--owner", "olga", "--default-pool", "default")
    assert "olga owns it" in made
    assert "changed" in out("workspace", "edit", "vision", "--description", "Looks")
    refused = rung("workspace", "edit", "vision", "--storage", "Vision")
    assert "give parts such as vision or teams/vision" in refused.err
    assert "changed" in out("workspace", "edit", "vision", "--storage", "")
    assert "olga" in out("workspace", "list")
    assert "experiment.delete" in out("workspace", "show", "vision")
    assert "Project vision/digits is created" in out("project", "create", "vision/digits")
    assert "changed" in out("project", "edit", "vision/digits", "--description", "x")
    assert "digits" in out("project", "list", "--workspace", "vision")
    assert "in the workspace default" in out("project", "move", "vision/digits", "default")
    assert "archived" in out("project", "archive", "default/digits")
    assert "open again" in out("project", "unarchive", "default/digits")
    assert "digits" in out("project", "show", "default/digits")
    assert "archived" in out("workspace", "archive", "vision")
    assert "open again" in out("workspace", "unarchive", "vision")
    given = out("role", "assign", "editor", "--user", "olga", "--workspace", "default")
    assert given == "olga has the role editor in the workspace default.\n"
    assert "cluster-admin" in out("role", "list")
    assert "olga" in out("role", "show", "editor")
    assert "editor" in out("role", "assignments", "--user", "olga")
    taken = out("role", "remove", "editor", "--user", "olga", "--workspace", "default")
    assert taken == "olga no longer has the role editor.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["user", "create", "admin"], "name"),
        (["user", "deactivate", "admin"], "no active cluster administrator would be left"),
        (["user", "edit", "admin"], "give at least one option"),
        (["user", "create", "x", "--workspace", "default"], "--workspace goes with --service"),
        (["user", "create", "x", "--service", "--email", "a@b"], "--email goes with people"),
        (["project", "create", "digits"], "give WORKSPACE/PROJECT"),
        (["group", "create", "x", "--provider", "--member", "admin"], "--member or --provider"),
        (["group", "create", "x", "--provider"], "has no identity provider"),
        (["role", "assign", "viewer"], "--user or --group, and not both"),
        (["role", "remove", "viewer"], "--user or --group, and not both"),
        (["role", "remove", "viewer", "--user", "admin"], "does not have the role viewer"),
        (["role", "show", "emperor"], "there is no role 'emperor'"),
        (["workspace", "show", "nowhere"], "there is no workspace 'nowhere'"),
    ],
)
def test_refused(arguments: list[str], words: str, rung: Rung) -> None:
    """What cannot be is said in a line, with what would be right."""
    result = rung(*arguments)
    assert result.code != 0
    assert words in result.err
    assert "Traceback" not in result.err


def test_json_is_the_answer(rung: Rung) -> None:
    """A script gets what the server answered."""
    listed: list[dict[str, Any]] = rung("workspace", "list", "--json").json
    assert "default" in [it["id"] for it in listed]
    assert rung("role", "show", "viewer", "--json").json["name"] == "viewer"


async def test_the_client_has_all_of_it() -> None:
    """Typed answers; a version that was seen, and a key, go along."""
    async with AsyncClient() as client:
        user = await client.users.create(name="pia", key="k1")
        assert await client.users.create(name="pia", key="k1") == user
        await client.users.change("pia", version=user.version, display_name="P")
        with pytest.raises(ClientError, match="another change came first"):
            await client.users.change("pia", version=user.version, display_name="Q")
        account = await client.service_accounts.create(name="robot")
        assert (await client.service_accounts.get(account.id)).kind == "service"
        roles = await client.roles()
        assert "auditor" in [it.name for it in roles]
        made = await client.assignments.create(role="auditor", user="pia")
        assert made in await client.assignments.list(user="pia")
        assert (await client.assignments.delete(made.id)).id == made.id
        assert [it.name for it in await client.users.list(active=True)].count("pia") == 1


def test_plain_methods_do_the_same() -> None:
    """For scripts without an event loop."""
    with contextlib.closing(Client()) as client:
        assert "default" in [it.name for it in client.workspaces.list()]
        assert client.projects.get("default/default").workspace == "default"
        group = client.groups.create(name="plain")
        assert client.groups.change_members("plain", add=["admin"]).members[0].id == "admin"
        assert client.groups.change("plain", name="plainer").id == group.id
        assert client.groups.delete("plainer").id == group.id
        assert client.roles()


def test_usage(rung: Rung) -> None:
    """As a table with its total, as comma-separated values, and as JSON; in the client, too."""
    assert rung("workspace", "create", "frugal").code == 0
    shown = rung("workspace", "usage", "frugal", "--since", "30d")
    assert shown.code == 0
    assert shown.out.splitlines()[-1].split()[0] == "all"
    listed = rung("workspace", "usage", "frugal", "--by", "owner", "--csv").out.splitlines()
    assert listed[0].split(",")[:3] == ["owner", "slot_hours", "running_slot_hours"]
    assert listed[1:] == []
    told = json.loads(rung("workspace", "usage", "--json").out)
    assert (told["by"], told["since"]) == ("workspace", None)
    with Client() as client:
        assert client.workspaces.usage(by="owner").items == []
    refused = rung("workspace", "usage", "frugal", "--by", "workspace")
    assert (refused.code, "give no WORKSPACE" in refused.err) == (2, True)
    assert "there is no workspace 'none'" in rung("workspace", "usage", "none").err
    assert "is no time" in rung("workspace", "usage", "--since", "soon").err
