"""The file with the tokens of `rung login`: whose it is, and who gets which token."""

from pathlib import Path

import pytest

from rung.client import (
    AsyncClient,
    ClientError,
    Credential,
    credentials_path,
    forget_credential,
    keep_credential,
    of_url,
    read_credential,
)
from support.scripted_server import Scripted, json_answer

URL = "https://rung.example.org"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def _credential(token: str = "rung_x") -> Credential:  # noqa: S107 - of no server
    return Credential(user="anna", token=token, token_id="t", expires_at="2030-01-01T00:00:00Z")  # noqa: S106 - of a server that lives for one test


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """Neither the file nor its folder; what others can read is not used."""
    path = keep_credential(URL, _credential())
    assert path == credentials_path() == tmp_path / "config/rung/credentials.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o640)
    with pytest.raises(ClientError, match="chmod 600"):
        read_credential(URL)


def test_one_for_each_server(tmp_path: Path) -> None:
    """A token goes to the server that gave it: same scheme, host, port and path."""
    keep_credential(URL, _credential())
    keep_credential("http://127.0.0.1:8080", _credential("rung_y"))
    for same in (URL, f"{URL}/", f"{URL}:443", "HTTPS://RUNG.example.org"):
        assert of_url(same, None, tmp_path).token == "rung_x"  # noqa: S105 - of a server that lives for one test
    for other in (
        "http://rung.example.org",
        f"{URL}:8443",
        f"{URL}/other",
        "https://evil.example",
        "https://rung.example.org@evil.example",
        "nonsense",
    ):
        assert of_url(other, None, tmp_path).token is None
    assert of_url(URL, "given", tmp_path).token == "given"  # noqa: S105 - of a server that lives for one test
    assert forget_credential(URL) == _credential()
    assert forget_credential(URL) is None
    assert read_credential("http://127.0.0.1:8080") == _credential("rung_y")


def test_a_damaged_file(tmp_path: Path) -> None:
    """It is named, and left as it is."""
    path = tmp_path / "config/rung/credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    path.chmod(0o600)
    with pytest.raises(ClientError, match="damaged"):
        read_credential(URL)
    with pytest.raises(ClientError, match="damaged"):
        keep_credential(URL, _credential())
    assert path.read_text() == "{"


async def test_the_client_sends_it() -> None:
    """A client of the address is signed in."""
    with Scripted() as server:
        server.token = "rung_z"  # noqa: S105 - of a server that lives for one test
        server.on("/agents", json_answer({"items": []}))
        keep_credential(server.url, _credential("rung_z"))
        async with AsyncClient(server.url) as client:
            assert (await client.agents()).items == []
