"""Who is answered: the right host name, the right token."""

import aiohttp
import pytest

from gateway.conftest import World, patient
from rung.gateway.settings import Settings
from support.gateway.client import TOKEN, Client


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"],
)
async def test_without_the_token(client: Client, header: str) -> None:
    """401, saying where the token is; no path tells whether it exists."""
    for path in ("/experiments", "/nothing", "/experiments/x/events"):
        answer = await client.call("GET", path, headers={"Authorization": header})
        assert (answer.status, answer.kind) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == 'Bearer realm="rung"'
        assert "~/.rung" in answer.json["detail"]


async def test_with_the_token(client: Client) -> None:
    """The scheme's name may be written in any case."""
    answer = await client.call("GET", "/status", headers={"Authorization": f"bearer {TOKEN}"})

    assert answer.status == 200


async def test_health_wants_no_token(client: Client) -> None:
    """A watchdog asks without a token."""
    answer = await client.call("GET", "/healthz", headers={"Authorization": ""})

    assert (answer.status, answer.json) == (200, {"status": "ok"})


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "evil:80", "[::2]:80"])
async def test_foreign_host_is_refused(client: Client, host: str) -> None:
    """A name that is not this server's is not answered, page and API alike."""
    for path in ("/experiments", "/openapi.json"):
        answer = await client.call("GET", path, headers={"Host": host})
        assert (answer.status, answer.kind) == (421, "unknown-host")
    async with client.session.get(client.url + "/", headers={"Host": host}) as page:
        assert page.status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8080"])
async def test_own_host_is_answered(client: Client, host: str) -> None:
    """Loopback goes by all of its names, whatever the port."""
    assert (await client.call("GET", "/status", headers={"Host": host})).status == 200


async def test_configured_host_is_answered(world: World) -> None:
    """A server that goes by another name is told so."""
    world.settings = patient(host_names=("Rung.example.org",))
    async with world.gateway() as client:
        headers = {"Host": "rung.example.org:8080"}
        assert (await client.call("GET", "/status", headers=headers)).status == 200


async def test_no_cors(client: Client) -> None:
    """No other page may read an answer, nor is a preflight answered."""
    headers = {"Origin": "https://evil.example", "Authorization": f"Bearer {TOKEN}"}
    url = f"{client.url}/api/v1/status"
    async with client.session.get(url, headers=headers) as answer:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    async with client.session.options(url, headers=headers) as preflight:
        assert preflight.status == 405


async def test_server_says_little(client: Client) -> None:
    """Headers name neither versions nor libraries."""
    async with aiohttp.request("GET", f"{client.url}/healthz") as answer:
        assert answer.headers["Server"] == "rung"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("heartbeat", 0),
        ("write_timeout", float("nan")),
        ("seen_timeout", -1),
        ("config_bytes_max", 0),
        ("code_bytes_max", 0),
        ("start_timeout", 0),
        ("host_names", ("http://x",)),
        ("host_names", ("",)),
    ],
)
def test_settings_are_checked(field: str, value: object) -> None:
    """A setting out of range is refused, named."""
    with pytest.raises(ValueError, match=field):
        Settings(**{field: value})  # type: ignore[arg-type]
