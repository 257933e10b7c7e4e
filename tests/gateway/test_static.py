"""The page: its own files, a strict policy, nothing else."""

from pathlib import Path

import pytest

from rung.gateway import static
from support.gateway.client import TOKEN, Client


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a page."""
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "index.html").write_text("<h1>Rung</h1>")
    (folder / "app.js").write_text("1")
    (folder / "__init__.py").write_text("")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(static, "FOLDER", folder)
    return folder


async def test_page_is_served(page: Path, client: Client) -> None:
    """Without a token, under a strict policy, and asked for again cheaply."""
    async with client.session.get(f"{client.url}/") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        tag = answer.headers["ETag"]
    async with client.session.get(f"{client.url}/", headers={"If-None-Match": tag}) as answer:
        assert answer.status == 304
    async with client.session.get(f"{client.url}/app.js") as answer:
        assert "javascript" in answer.content_type


async def test_a_request_opens_no_file(page: Path, client: Client) -> None:
    """All files were read at the start; one that has changed is read once more."""
    before = static._content.cache_info().misses
    for path in ("/", "/app.js", "/index.html"):
        async with client.session.get(client.url + path) as answer:
            assert answer.status == 200
    assert static._content.cache_info().misses == before
    (page / "app.js").write_text("22")
    async with client.session.get(f"{client.url}/app.js") as answer:
        assert await answer.text() == "22"


@pytest.mark.parametrize(
    "path",
    [
        "/nope.js",
        "/__init__.py",
        "/link.txt",
        "/..%2Fsecret.txt",
        "/%2e%2e/secret.txt",
        "/..%5Csecret.txt",
        "/a%00b",
        "//etc/passwd",
        "/" + "x" * 3000,
    ],
)
async def test_page_never_leaves_its_folder(page: Path, client: Client, path: str) -> None:
    """Whatever the path, nothing but the page's own files is served."""
    async with client.session.get(
        client.url + path, headers={"Authorization": f"Bearer {TOKEN}"}
    ) as answer:
        assert answer.status == 404
        assert b"secret" not in await answer.read() or "secret" in path
