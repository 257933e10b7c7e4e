"""`rung login`, `logout`, `whoami`: who one is at a server."""

import asyncio
import platform
import sys
import webbrowser
from collections.abc import Awaitable
from typing import Final, TypeVar

import click

from rung import api
from rung.cli.connection_options import Link, linked
from rung.cli.identity.loopback import draw, listening
from rung.cli.output import local_time, print_json, printable
from rung.client import AsyncClient, ClientError, Credential, forget_credential, keep_credential

WAIT_S: Final = 600.0
"""Seconds to wait for a sign-in in a browser or on another device."""
_SLOWER_S: Final = 5

T = TypeVar("T")


@click.command()
@click.option("--password", is_flag=True, help="With the password of a local account.")
@click.option("--device", is_flag=True, help="With a code to enter in a browser elsewhere.")
@click.option("--user", help="Name of the local account. [asked for]")
@click.option("--no-browser", is_flag=True, help="Print the address in place of opening it.")
@linked
async def login(
    *, password: bool, device: bool, user: str | None, no_browser: bool, link: Link
) -> None:
    """Sign in at the server of --url (RUNG_URL), and keep the session for further commands.

    Without --password or --device a browser is opened in which the identity provider signs you in.
    On one machine nobody needs this: the token of `rung up` is that of the user `admin`.
    """
    if password and device:
        raise click.UsageError("give --password or --device, not both")
    async with link.client() as client:
        methods = await client.identity.methods()
        if password or user or (methods.provider is None and not device):
            signed = await _with_password(client, methods, user)
        elif methods.provider is None:
            raise click.ClickException(
                f"{client.url} has no identity provider: sign in with --password"
            )
        elif device:
            signed = await _with_device(client)
        else:
            signed = await _with_browser(client, open_it=not no_browser)
        assert signed.token is not None
        url = client.url
    credential = Credential(
        user=signed.user,
        token=signed.token,
        token_id=signed.token_id,
        expires_at=signed.expires_at,
    )
    path = keep_credential(url, credential)
    if link.json:
        print_json({"user": signed.user, "url": url, "expires_at": signed.expires_at})
        return
    until = local_time(signed.expires_at)
    click.echo(printable(f"Signed in at {url} as {signed.user}, until {until} ({path})."))
    if link.url is None:
        click.echo(f"For further commands: export RUNG_URL={url}")


@click.command()
@linked
async def logout(link: Link) -> None:
    """End the session at the server of --url (RUNG_URL), and forget it."""
    url = link.locate().url
    known = forget_credential(url)
    if known is None:
        raise click.ClickException(f"you are not signed in at {url}: `rung login` signs you in")
    ended = True
    async with AsyncClient(url, known.token) as client:
        try:
            await client.identity.sign_out()
        except ClientError as error:
            if error.status != 401:
                ended = False
                click.echo(f"Warning: {printable(error)}", err=True)
    if link.json:
        print_json({"url": url, "user": known.user, "ended": ended})
    elif ended:
        click.echo(printable(f"Signed out at {url}, where you were {known.user}."))
    else:
        click.echo(printable(f"The session at {url} is forgotten here; there it ends by itself."))


@click.command()
@linked
async def whoami(link: Link) -> None:
    """Show who you are at the server."""
    async with link.client() as client:
        methods = await client.identity.methods()
        url = client.url
    if methods.user is None:
        raise click.ClickException(f"you are not signed in at {url}: `rung login` signs you in")
    if link.json:
        print_json({"user": methods.user, "url": url})
        return
    click.echo(printable(f"{methods.user} at {url}"))


async def _with_password(
    client: AsyncClient, methods: api.SignInMethods, user: str | None
) -> api.SignedIn:
    if not methods.passwords:
        raise click.ClickException(f"{client.url} has no passwords: leave out --password")
    name = user or click.prompt("User", err=True)
    secret = await read_secret("Password")
    wanted = api.PasswordSignIn(name=name, password=secret, client=_machine())
    return await client.identity.with_password(wanted)


async def read_secret(what: str) -> str:
    """Ask for a secret without showing it; where nobody is asked, read a line."""
    if sys.stdin.isatty():
        secret: str = click.prompt(what, hide_input=True, err=True)
        return secret
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.rstrip("\n")


async def _with_browser(client: AsyncClient, *, open_it: bool) -> api.SignedIn:
    drawn = draw()
    async with listening(drawn.state) as waiting:
        found = await client.identity.address(
            api.LoopbackSignIn(
                redirect_uri=waiting.uri,
                code_challenge=drawn.challenge,
                state=drawn.state,
                nonce=drawn.nonce,
            )
        )
        opened = open_it and await asyncio.to_thread(webbrowser.open, found.url)
        how = "Sign in in the browser" if opened else "Open this in a browser on this machine"
        click.echo(f"{how}: {printable(found.url)}", err=True)
        code = await _patiently(waiting.code())
    return await client.identity.with_code(
        api.CodeSignIn(
            code=code,
            code_verifier=drawn.verifier,
            redirect_uri=waiting.uri,
            nonce=drawn.nonce,
            client=_machine(),
        )
    )


async def _with_device(client: AsyncClient) -> api.SignedIn:
    code = await client.identity.device_code()
    where = code.verification_uri_complete or code.verification_uri
    click.echo(f"Open {printable(where)} in any browser", err=True)
    click.echo(f"and check that it shows the code {printable(code.user_code)}.", err=True)

    async def signed_in() -> api.SignedIn:
        wanted = api.DeviceSignIn(device_code=code.device_code, client=_machine())
        pause_s = max(1, code.interval_s)
        while True:
            await asyncio.sleep(pause_s)
            answer = await client.identity.with_device_code(wanted)
            if isinstance(answer, api.SignedIn):
                return answer
            pause_s += min(_SLOWER_S, answer.interval_s)

    return await _patiently(signed_in())


async def _patiently(waiting: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(WAIT_S):
            return await waiting
    except TimeoutError:
        raise click.ClickException("nobody signed in within ten minutes") from None


def _machine() -> str:
    return f"rung on {platform.node()}"[:200]
