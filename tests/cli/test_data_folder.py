"""A data folder is usable again, whatever ended the process that made it."""

import contextlib
import errno
import os
import socket
from pathlib import Path

import pytest

from rung.cli.local.data_folder import LAYOUT_VERSION, DataFolder, DataFolderError, read_server
from rung.client._data_folder import holder_of


@pytest.mark.parametrize("name", ["version", "token"])
def test_a_file_that_a_loss_of_power_left_empty_is_written_anew(name: str, tmp_path: Path) -> None:
    """An empty file says nothing that could be lost; the token is never empty."""
    (tmp_path / name).touch()
    with contextlib.closing(DataFolder.open(tmp_path)) as folder:
        token = folder.token
    assert token
    assert (tmp_path / "token").read_text() == f"{token}\n"
    assert (tmp_path / "version").read_text() == f"{LAYOUT_VERSION}\n"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    with contextlib.closing(DataFolder.open(tmp_path, keep_token=True)) as folder:
        assert folder.token == token


@pytest.mark.parametrize("layout", ["0", "99"])
def test_another_layout_is_refused(tmp_path: Path, layout: str) -> None:
    """In a sentence with both, whichever is the older one; nothing is made there."""
    (tmp_path / "version").write_text(f"{layout}\n")
    with pytest.raises(DataFolderError, match=f"another Rung .layout {layout}; this one knows 1"):
        DataFolder.open(tmp_path)
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize("name", ["version", "token"])
def test_what_is_not_durable_is_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file has its name before the disk has taken it."""
    if name == "token":
        (tmp_path / "version").write_text(f"{LAYOUT_VERSION}\n")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataFolderError, match=r"cannot be used \(No space left on device\)"):
        DataFolder.open(tmp_path)
    assert not (tmp_path / name).exists()


def test_the_token_is_new_at_each_start(tmp_path: Path) -> None:
    """One that somebody took is worth nothing after the next; with keep_token it stays."""
    tokens = []
    for keep in (False, False, True):
        with contextlib.closing(DataFolder.open(tmp_path, keep_token=keep)) as folder:
            tokens.append(folder.token)
    assert tokens[0] != tokens[1] == tokens[2]


def test_the_lock_does_not_go_with_its_file(tmp_path: Path) -> None:
    """A second process is refused, and leaves what the first one announced."""
    with contextlib.closing(DataFolder.open(tmp_path)) as folder:
        folder.announce("http://127.0.0.1:1", ready=True)
        (tmp_path / "lock").unlink()
        with pytest.raises(DataFolderError, match="already runs on"):
            DataFolder.open(tmp_path)
        assert (tmp_path / "server.json").exists()
        assert holder_of(tmp_path) == os.getpid()
    assert holder_of(tmp_path) is None


def test_a_folder_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    """It, what Rung made in it, and files with secrets; a warning says so, once."""
    data = tmp_path / "data"
    for name in ("ledger", "log", "agent", "objects/code"):
        (data / name).mkdir(parents=True)
    for file in ("token", "up.out", "ledger/ledger.db", "log/rung.log", "agent/spool.db"):
        (data / file).touch(0o644)
    (data / "gone").symlink_to(tmp_path / "nowhere")
    data.chmod(0o755)
    with contextlib.closing(DataFolder.open(data)) as folder:
        (warning,) = folder.warnings
        folder.announce("http://127.0.0.1:9", ready=True, warnings=folder.warnings)
        assert read_server(data).warnings == [warning]
        with folder.listen():
            modes = {
                path.stat().st_mode & 0o077
                for path in data.rglob("*")
                if path.exists() and path != data / "objects" / "code"
            }
    assert "was open to other users (mode 0755)" in warning
    assert modes == {0}
    assert data.stat().st_mode & 0o777 == 0o700
    with contextlib.closing(DataFolder.open(data)) as folder:
        assert folder.warnings == []


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even root: whose it is may change what runs from it."""
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(DataFolderError, match=r"belongs to the user .*, and you are the user"):
        DataFolder.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["version", "token", "server.json", "lock"])
def test_a_file_that_is_no_text_is_named(name: str, tmp_path: Path) -> None:
    """With what to do; what is written anew at each start is written anew."""
    with contextlib.closing(DataFolder.open(tmp_path)):
        pass
    (tmp_path / name).write_bytes(b"\xff\xfe\x80\n9\xb2")
    if name == "version":
        with pytest.raises(DataFolderError, match="which is no version"):
            DataFolder.open(tmp_path)
        return
    if name == "token":
        with pytest.raises(DataFolderError, match=r"token is damaged: .* remove the file"):
            DataFolder.open(tmp_path, keep_token=True)
    with contextlib.closing(DataFolder.open(tmp_path)) as folder:
        folder.announce("http://127.0.0.1:9", ready=True)
        assert read_server(tmp_path).token == folder.token


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("token", b"\xffabc", "token is damaged"),
        ("token", b"abc\ndef", "token is damaged"),
        ("server.json", b"\xff", "server.json is damaged"),
        ("server.json", b"[1]", "server.json is damaged"),
        ("server.json", b'{"url": 1, "pid": "x"}', "server.json is damaged"),
        ("server.json", b'{"url": "http://x", "pid": 1}', "no Rung runs on"),
    ],
)
def test_a_file_that_is_damaged_while_it_runs_is_named(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    """Whoever looks for the server reads a sentence, not a traceback."""
    with contextlib.closing(DataFolder.open(tmp_path)) as folder:
        folder.announce("http://127.0.0.1:9", ready=True)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataFolderError, match=words):
            read_server(tmp_path)


def test_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    """A Unix socket's address has 107 bytes; a folder's name may have more."""
    data = tmp_path / ("x" * 120)
    with contextlib.closing(DataFolder.open(data)) as folder, folder.listen() as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert (data / "server.sock").is_socket()
    assert not (data / "server.sock").exists()
