"""What teams do on the page, in two browsers before one gateway: an administrator and a member."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import pytest

from page.browser import Browser, Chromium
from page.conftest import TOKEN, Site
from rung.runtime.relay import relay
from support.gateway.holds import HOLDS
from support.gateway.scenario import EXPERIMENT, play, submitted

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PASSWORD: Final = "a password of the tests"  # noqa: S105 - of users that live for one test
HOSTILE: Final = "<img src=x onerror='window.pwned=1'>\"&amp;"
MEMBERS: Final = ".things[aria-label=Members]"
WEBHOOKS: Final = ".things[aria-label=Webhooks]"
MODELS: Final = ".things[aria-label=Models]"
VERSIONS: Final = ".things[aria-label=Versions]"
POLICIES: Final = ".things[aria-label=Policies]"
TEMPLATES: Final = ".things[aria-label=Templates]"
DELIVERIES: Final = ".things[aria-label=Deliveries]"


async def _call(site: Site, method: str, path: str, token: str = TOKEN, **body: Any) -> Any:
    """Return the status and the answer of a request."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method,
            f"{site.url}api/v1{path}",
            headers={"Authorization": f"Bearer {token}"},
            json=body or None,
        ) as answer,
    ):
        return answer.status, await answer.json()


async def _make(site: Site, path: str, **body: Any) -> Any:
    status, made = await _call(site, "POST", path, **body)
    assert status in {200, 201}, made
    return made


async def _fill(browser: Browser, **fields: str) -> None:
    """Fill in the dialog that is open, as a person would."""
    for name, value in fields.items():
        field = f"document.getElementById('field-{name}')"
        await browser.until(field)
        await browser.run(
            f"{field}.value = {json.dumps(value)};"
            f"{field}.dispatchEvent(new Event('change', {{ bubbles: true }}))"
        )


async def _press(browser: Browser, text: str, within: str = "body") -> None:
    """Press the button with a text, or the label that screen readers have, once it is seen."""
    found = (
        f"[...document.querySelectorAll({json.dumps(within + ' button')})].find((it) =>"
        f" [it.innerText, it.getAttribute('aria-label')].includes({json.dumps(text)})"
        " && it.checkVisibility() && !it.disabled)"
    )
    await browser.until(found)
    await browser.run(f"{found}.click()")


async def _closed(browser: Browser) -> None:
    await browser.until("!document.querySelector('dialog')")


async def _buttons(browser: Browser) -> set[str]:
    """Return what can be pressed in the view."""
    found: list[str] = await browser.run(
        "[...document.querySelectorAll('main button')]"
        ".filter((it) => it.checkVisibility()).map((it) => it.innerText)"
    )
    return set(found)


@pytest.fixture
async def admin(site: Site, browser: Browser) -> Browser:
    """The browser of an administrator."""
    await browser.open(f"{site.url}#token={TOKEN}")
    await browser.says("admin", "#account")
    return browser


@pytest.fixture
async def member(site: Site, chromium: Chromium) -> AsyncIterator[Browser]:
    """Another browser, of the user anna, who is not signed in yet."""
    await _make(site, "/users", name="anna")
    await _make(site, "/users/anna/password", password=PASSWORD)
    async with chromium.browse() as browser:
        yield browser


async def _sign_in(browser: Browser) -> None:
    await browser.until("document.querySelector('#name')")
    await browser.run("document.querySelector('#name').value = 'anna'")
    await browser.run("document.querySelector('#password').focus()")
    await browser.type(PASSWORD)
    await browser.press("Enter")
    await browser.says("anna", "#account")


async def _make_a_workspace(admin: Browser) -> str:
    """Make one with a project and a member, and return its id."""
    await admin.run("location.hash = '#/workspaces'")
    await _press(admin, "New workspace")
    await _fill(admin, name="default", description=HOSTILE)
    await _press(admin, "Create", "dialog")
    await admin.says("there is a workspace of the name", "dialog .problem")
    await _fill(admin, name=HOSTILE)
    await _press(admin, "Create", "dialog")
    await admin.says(HOSTILE, ".head h1")
    await admin.says(HOSTILE, ".head .words")
    place: str = await admin.run("location.hash.split('/').pop()")

    await _press(admin, "New project")
    await _fill(admin, name=HOSTILE)
    await _press(admin, "Create", "dialog")
    await admin.says(HOSTILE, ".things[aria-label=Projects]")
    await _press(admin, f"Edit project {HOSTILE}")
    await _fill(admin, name="digits")
    await _press(admin, "Save", "dialog")
    await admin.says("digits", ".things[aria-label=Projects]")

    await _press(admin, "Add a member")
    await _fill(admin, who="nobody", role="viewer")
    await _press(admin, "Add", "dialog")
    await admin.says("there is no user 'nobody'", "dialog .problem")
    await _fill(admin, who="anna")
    await _press(admin, "Add", "dialog")
    await admin.says("anna", MEMBERS)
    return place


async def _sees_no_buttons(site: Site, member: Browser, place: str) -> None:
    """Open a colleague's link, sign in there, and look round."""
    await member.open(f"{site.url}#/x/{EXPERIMENT}")
    await _sign_in(member)
    await member.says("digits", ".head h1")
    assert not await _buttons(member) & {"Edit", "Archive", "Pause", "Cancel", "Kill", "Delete"}
    await member.run(f"location.hash = '#/workspaces/{place}'")
    await member.says("viewer", MEMBERS)
    assert await _buttons(member) == set()
    await member.run("location.hash = '#/people'")
    await member.says("anna", ".things[aria-label=Users]")
    assert await _buttons(member) == set()
    await member.run("location.hash = '#/workspaces'")
    await member.says(HOSTILE, ".things")
    assert await _buttons(member) == set()


async def _meets_a_change(site: Site, admin: Browser, place: str) -> None:
    """Change a workspace that another one has changed meanwhile; archive it, and open it."""
    await _press(admin, "Edit")
    await _fill(admin, name="vision")
    await _make(site, f"/workspaces/{place}", description="changed meanwhile")
    await _press(admin, "Save", "dialog")
    await admin.says("another change came first", "dialog .problem")
    assert await admin.run("document.getElementById('field-name').value") == "vision"
    await _press(admin, "Back", "dialog")
    await _closed(admin)
    await admin.says("changed meanwhile", ".head .words")
    await _press(admin, "Archive", ".head")
    await _press(admin, "Archive", "dialog")
    await admin.says("archived", ".head .badge")
    await _press(admin, "Open again", ".head")


async def _makes_people(admin: Browser) -> None:
    """Make a group with a member, and a user with a password."""
    await admin.run("location.hash = '#/people'")
    await _press(admin, "New group")
    await _fill(admin, name=HOSTILE)
    await _press(admin, "Create", "dialog")
    await _press(admin, f"Members: {HOSTILE}")
    await _fill(admin, add="anna")
    await _press(admin, "Change", "dialog")
    await admin.says("anna", ".things[aria-label=Groups]")
    await _press(admin, "New user")
    await _fill(admin, name=HOSTILE, display_name=HOSTILE)
    await _press(admin, "Create", "dialog")
    await admin.says("must be without", "dialog .problem")
    await _fill(admin, name="ben")
    await _press(admin, "Create", "dialog")
    await admin.says("ben", ".things[aria-label=Users]")
    await _press(admin, "Set password: ben")
    await _fill(admin, password=PASSWORD)
    await _press(admin, "Set", "dialog")
    await _closed(admin)


async def _is_clean(browser: Browser) -> None:
    """No name became markup, and nothing failed but requests that were refused."""
    assert await browser.run("window.pwned === undefined && !document.querySelector('main img')")
    assert all("the server responded" in it for it in browser.complaints), browser.complaints
    browser.complaints.clear()


async def test_a_workspace_and_its_members(site: Site, admin: Browser, member: Browser) -> None:
    """Made, filled, changed and taken away by one; seen without buttons by the other.

    Names are hostile, refusals are shown in the server's words and lose nothing, and a link that
    a colleague opens is where he is after signing in.
    """
    await site.write(submitted())
    place = await _make_a_workspace(admin)
    await _make(site, "/assignments", user="anna", role="viewer", workspace="default")
    await _sees_no_buttons(site, member, place)
    await _meets_a_change(site, admin, place)
    await member.run(f"location.hash = '#/workspaces/{place}'")
    await member.says("viewer", MEMBERS)
    await _press(admin, "Remove viewer of anna")
    await _press(admin, "Remove", "dialog")
    await admin.until(f"!document.querySelector('{MEMBERS}').innerText.includes('anna')")
    await member.says("there is no workspace", ".empty")
    await _makes_people(admin)
    await _press(admin, "Deactivate: anna")
    await _press(admin, "Deactivate", "dialog")
    await member.says("The session has ended", ".signin")
    for browser in (admin, member):
        await _is_clean(browser)


async def _subscribes(admin: Browser) -> str:
    """Make a webhook, after what is refused of it, and return its key."""
    await admin.run("location.hash = '#/workspaces/default'")
    await _press(admin, "New webhook")
    await _fill(admin, name=HOSTILE, to="https://127.0.0.1/hook", metrics="accuracy is high")
    await _press(admin, "Create", "dialog")
    await admin.says("write “accuracy > 0.9”, not “accuracy is high”", "dialog .problem")
    await _fill(admin, metrics="accuracy > 0.9")
    await _press(admin, "Create", "dialog")
    await admin.says("127.0.0.1", "dialog .problem")  # an inner address is refused
    await _fill(admin, to="https://hooks.example.org/rung")
    await _press(admin, "Create", "dialog")
    await admin.until("document.querySelector('#secret')")
    key: str = await admin.run("document.querySelector('#secret').value")
    await _press(admin, "I have it", "dialog")
    await admin.says("accuracy > 0.9", WEBHOOKS)
    return key


async def test_webhooks(site: Site, admin: Browser, member: Browser) -> None:
    """Made, tried, changed and removed by one; seen without buttons by one who may look alone.

    The key is shown once, and what is delivered is listed as it goes.
    """
    key = await _subscribes(admin)
    assert key.startswith("whsec_")
    await admin.click(f"{WEBHOOKS} a")
    await admin.says(HOSTILE, ".head h1")
    assert key not in await admin.run("document.documentElement.outerHTML")
    await _press(admin, "Send a test")
    await admin.says("rung.webhook.test.v1", DELIVERIES)
    await admin.says("waiting", DELIVERIES)
    await _make(site, "/assignments", user="anna", role="editor-restricted", workspace="default")
    await member.open(site.url + await admin.run("location.hash"))
    await _sign_in(member)
    await member.says("rung.webhook.test.v1", DELIVERIES)
    assert await _buttons(member) == set()
    await _press(admin, "Edit", ".head")
    await _fill(admin, name="ops", states="errored no-such-state")
    await _press(admin, "Save", "dialog")
    await admin.says("no-such-state", "dialog .problem")
    await _fill(admin, states="errored")
    await _press(admin, "Save", "dialog")
    await member.says("in the states errored", ".head .words")
    await _press(admin, "New key", ".head")
    await _press(admin, "Draw", "dialog")
    await admin.until("document.querySelector('#secret')")
    assert await admin.run("document.querySelector('#secret').value") != key
    await _press(admin, "I have it", "dialog")
    await _press(admin, f"Deliver again: rung.webhook.test.v1 of {HOSTILE}", DELIVERIES)
    await admin.says("It is delivered again", "#toasts")
    await _press(admin, "Switch off", ".head")
    await _press(admin, "Switch off", "dialog")
    await member.says("off", ".head .badge")
    await _press(admin, "Remove", ".head")
    await _press(admin, "Remove", "dialog")
    await admin.says("No webhooks.", "section[aria-label=Webhooks]")
    await member.says("there is no webhook", ".empty")
    for browser in (admin, member):
        await _is_clean(browser)


async def test_models(site: Site, admin: Browser, member: Browser) -> None:
    """Made, given a version, archived and deleted by one; seen without buttons by another."""
    await site.play(play(1))
    holding = asyncio.create_task(relay(site.ledger, HOLDS))
    _, listed = await _call(site, "GET", f"/experiments/{EXPERIMENT}/checkpoints")
    checkpoint = next(it["id"] for it in listed["items"] if it["state"] == "stored")
    await admin.run("location.hash = '#/workspaces/default'")
    await _press(admin, "New model")
    await _fill(admin, name="a/b", labels="prod, small, prod")
    await _press(admin, "Create", "dialog")
    await admin.says("must be without", "dialog .problem")
    await _fill(admin, name=HOSTILE.replace("/", ""))
    await _press(admin, "Create", "dialog")
    await admin.says("prod, small", MODELS)
    await admin.click(f"{MODELS} a")
    await _press(admin, "Register a checkpoint")
    await _fill(admin, checkpoint="no-such", notes=HOSTILE)
    await _press(admin, "Register", "dialog")
    await admin.says("no-such", "dialog .problem")
    await _fill(admin, checkpoint=checkpoint)
    await _press(admin, "Register", "dialog")
    await admin.says(checkpoint, VERSIONS)
    await _make(site, "/assignments", user="anna", role="viewer", workspace="default")
    await member.open(site.url + await admin.run("location.hash"))
    await _sign_in(member)
    await member.says(checkpoint, VERSIONS)
    assert await _buttons(member) == set()
    await _press(admin, "Edit", ".head")
    await _fill(admin, name="digits", description="reads digits")
    await _press(admin, "Save", "dialog")
    await member.says("reads digits", ".head .words")
    await _press(admin, "Archive", ".head")
    await member.says("archived", ".head .badge")
    await _press(admin, "Open again", ".head")
    await _press(admin, "Delete version 1", VERSIONS)
    await _press(admin, "Delete", "dialog")
    await member.says("No versions.", "section[aria-label=Versions]")
    await _press(admin, "Delete", ".head")
    await _press(admin, "Delete", "dialog")
    await admin.says("No models.", "section[aria-label=Models]")
    await member.says("there is no model", ".empty")
    for browser in (admin, member):
        await _is_clean(browser)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def _sets_policies(site: Site, admin: Browser) -> None:
    """Make a policy of the workspace and one of a project, after what is refused of them."""
    await _make(site, "/policies", name="house", kind="invariants", document="max_restarts: 3\n")
    await admin.run("location.hash = '#/workspaces/default'")
    await admin.says("house", POLICIES)
    await _press(admin, "New policy")
    wrong = "max_restarts: {at_most: 3}\nresources.max_slot_hours: {at_most: many}\n"
    await _fill(admin, name=HOSTILE, kind="constraints", document=wrong)
    await _press(admin, "Create", "dialog")
    await admin.says(
        "resources.max_slot_hours.at_most, line 2: must be a number", "dialog .problem"
    )
    await _fill(admin, document=wrong.replace("many", "9"))
    await _press(admin, "Create", "dialog")
    await _closed(admin)
    await admin.says(HOSTILE, POLICIES)
    await admin.says("workspace default", POLICIES)
    await _press(admin, "New policy")
    await _fill(admin, name=HOSTILE, document="max_restarts: 1\n")
    await _press(admin, "Create", "dialog")
    await admin.says("there is a policy of the name", "dialog .problem")
    await _fill(admin, place="default")
    await _press(admin, "Create", "dialog")
    await _closed(admin)
    await admin.says("project default", POLICIES)


async def _sets_a_template(admin: Browser) -> None:
    """Make one, after what is refused of it; meet a change, and look at the document."""
    await _press(admin, "New template")
    await _fill(admin, name="quick", document="labels: [quick]\nmax_restart: 1\n")
    await _press(admin, "Create", "dialog")
    await admin.says("max_restart, line 2", "dialog .problem")
    await _fill(admin, document=f"description: {json.dumps(HOSTILE)}\nmax_restarts: 1\n")
    await _press(admin, "Create", "dialog")
    await _closed(admin)
    await admin.click(f"{TEMPLATES} summary")
    await admin.says("max_restarts: 1", f"{TEMPLATES} pre")
    await admin.says("onerror", f"{TEMPLATES} pre")


async def test_policies_and_templates(site: Site, admin: Browser, member: Browser) -> None:
    """Made, changed and removed by one; read without buttons by one who may look alone.

    What the server refuses is named with its line, and stays in the form.
    """
    await _sets_policies(site, admin)
    await _sets_a_template(admin)
    await _make(site, "/assignments", user="anna", role="viewer", workspace="default")
    await member.open(f"{site.url}#/workspaces/default")
    await _sign_in(member)
    await member.says("max_restarts: {at_most: 3}", POLICIES)
    await member.says("quick", TEMPLATES)
    assert await _buttons(member) == set()
    await _press(admin, "Edit template quick")
    before = await admin.run("document.getElementById('field-document').value")
    path = "/workspaces/default/templates"
    await _make(site, path, name="quick", document="labels: [meanwhile]\n")
    await _fill(admin, document=before.replace("1", "2"))
    await _press(admin, "Save", "dialog")
    await admin.says("another change came first", "dialog .problem")
    assert "max_restarts: 2" in await admin.run("document.getElementById('field-document').value")
    await _press(admin, "Back", "dialog")
    await admin.says("labels: [meanwhile]", TEMPLATES)
    await _press(admin, "Edit template quick")
    await _fill(admin, document="labels: [quick]\n")
    await _press(admin, "Save", "dialog")
    await member.says("labels: [quick]", TEMPLATES)
    assert not await admin.run("document.querySelector('[aria-label=\"Edit policy house\"]')")
    for _ in range(2):  # the one of the workspace, and the one of its project
        await _press(admin, f"Remove policy {HOSTILE}", POLICIES)
        await _press(admin, "Remove", "dialog")
        await _closed(admin)
        await admin.says("is removed", "#toasts")
        await admin.until("!document.querySelector('.toast')")
    await _press(admin, "Remove template quick", TEMPLATES)
    await _press(admin, "Remove", "dialog")
    await admin.says("No templates.", "section[aria-label=Templates]")
    await member.says("No templates.", "section[aria-label=Templates]")
    rows = f"document.querySelectorAll('{POLICIES} tbody tr').length"
    await member.until(f"{rows} === 1")
    for browser in (admin, member):
        await _is_clean(browser)


async def _has_a_token(site: Site, admin: Browser) -> None:
    """Make a token, use it, and revoke it."""
    await admin.run("location.hash = '#/account'")
    await _press(admin, "New token")
    await _fill(admin, name=HOSTILE, scope="listed", permissions="no.such", days="7")
    await _press(admin, "Create", "dialog")
    await admin.says("no.such", "dialog .problem")
    await _fill(admin, scope="read")
    await _press(admin, "Create", "dialog")
    await admin.until("document.querySelector('#secret')")
    secret = await admin.run("document.querySelector('#secret').value")
    assert (await _call(site, "GET", "/experiments", secret))[0] == 200
    await admin.press("Escape")
    await _press(admin, "I have it", "dialog")
    await admin.says(HOSTILE, ".things")
    kept = "document.documentElement.outerHTML + JSON.stringify({...sessionStorage})"
    assert secret not in await admin.run(kept)
    await _press(admin, f"Revoke {HOSTILE}")
    await _press(admin, "Revoke", "dialog")
    await admin.until("!document.querySelector('.things').innerText.includes('onerror')")
    assert (await _call(site, "GET", "/experiments", secret))[0] == 401


async def _describes(admin: Browser) -> None:
    """Write about an experiment, archive it, and take that back."""
    await admin.run(f"location.hash = '#/x/{EXPERIMENT}'")
    await _press(admin, "Edit", ".head")
    await _fill(admin, name="renamed", description="why", labels=f"keep\n{HOSTILE}", notes=HOSTILE)
    await _press(admin, "Save", "dialog")
    await admin.says(HOSTILE, ".head .notes")
    await admin.says("renamed", ".head h1")
    await admin.says(f"keep, {HOSTILE}", ".head .about")
    await _press(admin, "Archive", ".head")
    await admin.says("archived", ".head")
    await _press(admin, "Unarchive", ".head")


async def _saves_a_search(admin: Browser) -> None:
    """Choose a workspace and a project, save that, open it, and remove it."""
    await admin.run("location.hash = '#/'")
    await admin.says("renamed", ".list")
    workspace = "document.querySelector('select[aria-label=Workspace]')"
    await admin.until(f"{workspace}.innerText.includes('onerror')")
    changed = "dispatchEvent(new Event('change'))"
    await admin.run(f"{workspace}.value = 'default'; {workspace}.{changed}")
    project = "document.querySelector('select[aria-label=Project]')"
    await admin.run(f"{project}.value = 'default'; {project}.{changed}")
    wanted = "workspace:default project:default"
    assert await admin.run("document.querySelector('input[type=search]').value") == wanted
    assert (
        await admin.run("new URLSearchParams(location.hash.split('?')[1]).get('filter')") == wanted
    )
    await _press(admin, "Save")
    await _fill(admin, name=HOSTILE, workspace="default")
    await _press(admin, "Save", "dialog")
    saved = "document.querySelector('select[aria-label=\"Saved searches\"]')"
    await admin.until(f"{saved}.selectedOptions[0].text.includes('onerror')")
    await admin.run("location.hash = '#/?filter=renamed'")
    await admin.until(f"{saved}.value === '' && {workspace}.value === ''")
    await admin.run(f"{saved}.selectedIndex = 1; {saved}.{changed}")
    await admin.until(f"{workspace}.value === 'default' && {project}.value === 'default'")
    await admin.says("renamed", ".list")
    await _press(admin, "Remove")
    await _press(admin, "Remove", "dialog")
    await admin.until(f"{saved}.hidden")


async def test_tokens_and_searches(site: Site, admin: Browser) -> None:
    """A secret is shown once; what is filtered stands in the address, and is saved and removed.

    What is written about an experiment is shown as it was written. Whoever signs out is out.
    """
    await _has_a_token(site, admin)
    await site.write(submitted())
    await _make(site, "/workspaces", name=HOSTILE)
    await _describes(admin)
    await _saves_a_search(admin)
    await admin.click("#account button")
    await admin.says("Token", ".signin")
    assert await admin.run("sessionStorage.length") == 0
    await _is_clean(admin)
