"""Encrypted values: bound to their names, readable by their keys alone, re-encrypted in place."""

import http.server
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.events.errors import SecretError, SecretsUnavailable
from rung.secrets import master_key
from rung.secrets.master_key import LocalKeys, WrappedKey, key_id, master_key_of
from rung.secrets.secret_store import SecretStore, workspace_object
from rung.secrets.values import SecretValue, given, restored, texts_of
from rung.storage import FolderStore

OLD, NEW = b"o" * 32, b"n" * 32
NAME = workspace_object("default", "hf")


@pytest.fixture
def objects(tmp_path: Path) -> FolderStore:
    """Return an object store."""
    return FolderStore(tmp_path / "objects")


def test_a_value_comes_back_and_is_nowhere_in_clear(objects: FolderStore, tmp_path: Path) -> None:
    """The reference has the digest of the ciphertext, and equal values look different."""
    store = SecretStore(objects, LocalKeys(lambda: [OLD]))
    first, second = store.put(NAME, b"hush-hush"), store.put(NAME, b"hush-hush")
    assert store.get(NAME) == store.get(NAME, second.digest) == b"hush-hush"
    assert first.digest != second.digest
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(b"hush" in path.read_bytes() for path in files)
    with pytest.raises(SecretError, match="on record"):
        store.get(NAME, first.digest)


def test_an_object_passes_for_no_other(objects: FolderStore) -> None:
    """Neither at another name nor altered; the error tells nothing of the value."""
    store = SecretStore(objects, LocalKeys(lambda: [OLD]))
    store.put(NAME, b"hush-hush")
    data = objects.read(NAME)
    objects.put_bytes(workspace_object("other", "hf"), data)
    with pytest.raises(SecretError, match="moved from another") as caught:
        store.get(workspace_object("other", "hf"))
    assert "hush" not in str(caught.value)
    found = json.loads(data)
    found["ciphertext"] = found["ciphertext"][:-4] + "AAA="
    objects.put_bytes(NAME, json.dumps(found).encode())
    with pytest.raises(SecretError, match="altered"):
        store.get(NAME)
    objects.put_bytes(NAME, b"{")
    with pytest.raises(SecretError, match="damaged"):
        store.get(NAME)


def test_another_key_is_named(objects: FolderStore) -> None:
    """The error names the key that is missing, by its id."""
    SecretStore(objects, LocalKeys(lambda: [OLD])).put(NAME, b"x")
    with pytest.raises(SecretError, match=key_id(OLD)):
        SecretStore(objects, LocalKeys(lambda: [NEW])).get(NAME)


def test_keys_are_changed_while_both_are_there(objects: FolderStore, tmp_path: Path) -> None:
    """Old values are read throughout; their digests stay; the old key is needed no longer."""
    path = tmp_path / "secrets.key"
    keys = master_key.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = SecretStore(objects, keys)
    reference = store.put(NAME, b"x")
    [before] = store.key_ids()
    added = master_key.add_key(path)
    assert store.get(NAME) == b"x"
    assert master_key.keep_keys(path, store.key_ids().__contains__) == []
    assert store.rekey()[:2] == (1, 0)
    assert store.rekey()[:2] == (0, 1)
    assert store.key_ids() == {added}
    assert master_key.keep_keys(path, store.key_ids().__contains__) == [before]
    assert store.get(NAME, reference.digest) == b"x"


def test_a_lost_key_fails_one_object_and_not_the_others(objects: FolderStore) -> None:
    """Objects that cannot be re-encrypted are listed, and left as they are."""
    SecretStore(objects, LocalKeys(lambda: [OLD])).put(NAME, b"x")
    store = SecretStore(objects, LocalKeys(lambda: [NEW]))
    store.put(workspace_object("default", "b"), b"y")
    found = store.rekey()
    assert (found.changed, found.already, len(found.failed)) == (0, 1, 1)
    assert NAME in found.failed[0]


@pytest.mark.parametrize("text", ["short", "", "vault+https://host", "vault+http://u:p@host/a/b"])
def test_what_is_no_key_is_refused_without_being_shown(text: str) -> None:
    """The message says what a key looks like."""
    with pytest.raises(SecretError) as caught:
        master_key_of(text)
    assert "short" not in str(caught.value)


def test_keys_of_a_variable() -> None:
    """Digits or a text; the first encrypts, all decrypt."""
    first = master_key_of("a" * 40)
    wrapped = first.wrap(b"k" * 32, b"c")
    both = master_key_of(f"{'0' * 64}, {'a' * 40}")
    assert both.unwrap(wrapped, b"c") == b"k" * 32
    assert not both.is_current(wrapped.key_id)
    with pytest.raises(SecretError, match="altered"):
        both.unwrap(wrapped, b"another")


def test_what_a_trial_gets() -> None:
    """Its data and variables, in their places; no login of a registry or a store."""
    config = {
        "data": {"secrets": {"pin": "*"}},
        "environment": {"environment_variables": {"cpu": ["A=*"]}, "registry_auth": {"p": "*"}},
    }
    secrets = [
        SecretValue(("data", "secrets", "pin"), 4711),
        SecretValue(("environment", "environment_variables", "cpu", 0), "A=hush"),
        SecretValue(("environment", "registry_auth", "p"), "login"),
    ]
    found = restored(config, given(secrets))
    assert found["data"]["secrets"]["pin"] == 4711
    assert found["environment"]["environment_variables"]["cpu"] == ["A=hush"]
    assert found["environment"]["registry_auth"] == {"p": "*"}
    assert config["data"] == {"secrets": {"pin": "*"}}
    assert texts_of(secrets) == ["4711", "hush", "login"]


class _Transit(http.server.BaseHTTPRequestHandler):
    """A stand-in for a transit engine: as its documentation describes requests and answers."""

    status = 200
    version = 1

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, _, mount, verb, name = self.path.split("/")
        fine = (self.headers["X-Vault-Token"], mount, name) == ("t0ken", "transit", "rung")
        status = type(self).status if fine else 403
        if verb == "encrypt":
            inner = asked["associated_data"] + "." + asked["plaintext"]
            data = {"ciphertext": f"vault:v{type(self).version}:{inner[::-1]}"}
        else:
            context, _, text = asked["ciphertext"].rpartition(":")[2][::-1].partition(".")
            status = status if context == asked["associated_data"] else 400
            data = {"plaintext": text}
        body = json.dumps({"data": data}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def transit() -> Iterator[str]:
    """Return the URL of a transit engine's stand-in."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Transit)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    _Transit.status, _Transit.version = 200, 1
    yield f"vault+http://127.0.0.1:{server.server_port}/transit/rung"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_kms_encrypts_data_keys(transit: str, objects: FolderStore, tmp_path: Path) -> None:
    """Its key stays there; its versions are key ids; what it refuses and its outages are told."""
    (tmp_path / "token").write_text("t0ken\n")
    key = master_key_of(transit, {"VAULT_TOKEN_FILE": str(tmp_path / "token")})
    store = SecretStore(objects, key)
    store.put(NAME, b"x")
    assert store.get(NAME) == b"x"
    assert store.key_ids() == {"vault:transit/rung:v1"}
    _Transit.version = 2
    assert store.rekey()[:2] == (1, 0)
    assert store.key_ids() == {"vault:transit/rung:v2"}
    with pytest.raises(SecretError, match="not under vault:transit/rung"):
        key.unwrap(WrappedKey("vault:transit/other:v1", b"x"), b"c")
    _Transit.status = 503
    with pytest.raises(SecretsUnavailable):
        store.get(NAME)
    _Transit.status = 200
    with pytest.raises(SecretError, match="policy of the token"):
        SecretStore(objects, master_key_of(transit, {"VAULT_TOKEN": "no"})).get(NAME)
