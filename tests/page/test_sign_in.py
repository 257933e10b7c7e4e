"""Signing in with a real browser: by a password, and by a real identity provider; the CLI, too."""

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from page.browser import Browser
from page.conftest import TOKEN, Site
from rung.events.changes import CreateUser
from rung.events.directory import SYSTEM, ChangeRequested
from rung.gateway.identity.oidc.provider import ProviderSettings
from rung.gateway.identity.settings import IdentitySettings
from servers.keycloak import Keycloak
from support.gateway.identity_provider import (
    CLI_CLIENT_ID,
    CLIENT_ID,
    CLIENT_SECRET,
    PASSWORD,
    REALM,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_WHOLE: Final = "document.readyState === 'complete'"


async def _restart(site: Site, keycloak: Keycloak) -> None:
    """Start the gateway anew, now that its address is known, with the identity provider."""
    provider = ProviderSettings(
        issuer=keycloak.issuer(REALM),
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        cli_client_id=CLI_CLIENT_ID,
        name="Company",
    )
    site.identity = IdentitySettings(public_url=site.url.rstrip("/"), provider=provider)
    await site.stop()
    await site.start()


async def _at_provider(browser: Browser, name: str = "anna") -> None:
    """Fill in the provider's form, once its scripts and styles move nothing any more."""
    await browser.until(f"{_WHOLE} && document.querySelector('#username')")
    await browser.run("document.querySelector('#username').focus()")
    await browser.type(name)
    await browser.run("document.querySelector('#password').focus()")
    await browser.type(PASSWORD)
    await browser.press("Enter")


class _Rung:
    """A command of the command line, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said = ""

    async def until(self, pattern: str) -> str:
        """Return what it says to a person, once it says something like that."""
        assert self._process.stderr is not None
        async with asyncio.timeout(120):
            while (found := re.search(pattern, self.said)) is None:
                line = await self._process.stderr.readline()
                assert line, self.said
                self.said += line.decode()
        return found.group(0)

    async def out(self) -> str:
        """Return what it printed; it has to succeed."""
        out, error = await asyncio.wait_for(self._process.communicate(), 120)
        assert self._process.returncode == 0, (self.said, error)
        return out.decode()

    async def end(self) -> None:
        """Kill it, if a test failed before it ended."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


Start = Callable[..., Awaitable[_Rung]]


@pytest.fixture
async def rung(site: Site, tmp_path: Path) -> AsyncIterator[Start]:
    """Give a function that starts a command; none outlives its test."""
    started: list[_Rung] = []

    async def start(*arguments: str) -> _Rung:
        started.append(await _rung(site, tmp_path, *arguments))
        return started[-1]

    yield start
    for command in started:
        await command.end()


async def _rung(site: Site, folder: Path, *arguments: str) -> _Rung:
    environment = {
        **os.environ,
        "RUNG_URL": site.url,
        "XDG_CONFIG_HOME": str(folder),
        "RUNG_DATA": str(folder / "none"),
    }
    environment.pop("RUNG_TOKEN", None)
    return _Rung(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rung.cli",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    )


async def _api(site: Site, method: str, path: str, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{site.url}api/v1{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers, **options) as answer,
    ):
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def test_by_the_identity_provider(
    site: Site, browser: Browser, keycloak: Keycloak, rung: Start
) -> None:
    """The page goes there and comes back; then the CLI by the browser, and by a device code.

    A session that is revoked signs the page out within 5 s.
    """
    await _restart(site, keycloak)
    await browser.open(site.url)
    await browser.click("#provider")
    await _at_provider(browser)
    await browser.says("Experiments", "h1")
    await browser.says("anna", "#account")
    assert await browser.run("document.cookie") == ""

    login = await rung("login", "--no-browser")
    await browser.open(await login.until(r"http://127\.0\.0\.1:\d+/realms/\S+"))
    assert "as anna" in await login.out()
    await browser.says("You are signed in")
    assert await (await rung("whoami")).out() == f"anna at {site.url}\n"

    await browser.open(site.url)
    await browser.says("Experiments", "h1")
    browser.complaints.clear()  # the provider's pages, and an icon that the loopback has not
    sessions = (await _api(site, "GET", "/tokens?user=anna"))["items"]
    assert {it["kind"] for it in sessions} == {"session"}
    page = next(it["id"] for it in sessions if it["name"] == "page")
    await _api(site, "POST", f"/tokens/{page}/revoke")
    async with asyncio.timeout(10):
        await browser.says("The session has ended", ".signin")
    browser.complaints.clear()  # the requests that were refused
    assert "anna" in await (await rung("whoami")).out()
    await (await rung("logout")).out()


async def test_by_a_device_code(
    site: Site, browser: Browser, keycloak: Keycloak, rung: Start
) -> None:
    """A terminal shows a code, which somebody confirms in a browser elsewhere."""
    await _restart(site, keycloak)
    login = await rung("login", "--device")
    await browser.open(await login.until(r"http://127\.0\.0\.1:\d+/realms/\S+"))
    await _at_provider(browser, "ben")
    accept = "document.querySelector('input[name=accept], button[name=accept]')"
    await browser.until(f"{_WHOLE} && {accept}")
    await browser.run(f"{accept}.click()")
    assert "as ben" in await login.out()
    browser.complaints.clear()  # of the provider's pages


async def test_with_a_password(site: Site, browser: Browser) -> None:
    """The plain form; a wrong password says so, and signing out ends the session."""
    await site.write(
        ChangeRequested(
            request_id="1",
            by=SYSTEM,
            at_ms=time.time_ns() // 1_000_000,
            change=CreateUser(user_id="anna", name="anna"),
        )
    )
    async with asyncio.timeout(30):
        while True:  # the gateway has it once it is decided
            with contextlib.suppress(AssertionError):
                body = {"password": "a password of the tests"}
                await _api(site, "POST", "/users/anna/password", json=body)
                break
            await asyncio.sleep(0.05)
    await browser.open(site.url)
    for number, password in enumerate(["wrong", "a password of the tests"]):
        await browser.until("document.querySelector('#name')")
        await browser.run("document.querySelector('#name').value = 'anna'")
        await browser.run("document.querySelector('#password').focus()")
        await browser.type(password)
        await browser.press("Enter")
        if number == 0:
            await browser.says("the name or the password is wrong", ".signin")
    browser.complaints.clear()  # the refused attempt
    await browser.says("anna", "#account")
    await browser.click("#account button")
    await browser.says("Token", ".signin")
