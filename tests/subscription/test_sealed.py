"""Receivers are sealed: nothing of them is readable, and none can be moved."""

from pathlib import Path

import pytest

from rung.events.errors import SecretError
from rung.secrets.master_key import master_key_of
from rung.secrets.secret_store import SecretStore
from rung.storage import FolderStore
from rung.subscription.document import Receiver
from rung.subscription.sealed import Seal

RECEIVER = Receiver(url="https://hooks.example.com/T0KEN", key="whsec_abc", mail_to=["a@b.c"])
OLD, NEW = "an old secret of thirty-two letters", "a new secret of thirty-two letters!"


def sealing(folder: Path, *keys: str) -> Seal:
    """Return what seals under these keys."""
    return Seal(SecretStore(FolderStore(folder), master_key_of(",".join(keys))))


def test_what_is_sealed_is_opened_by_the_same_key_alone(tmp_path: Path) -> None:
    """For the same webhook; also by a key that stands behind the current one."""
    sealed = sealing(tmp_path, OLD).seal("w1", RECEIVER)
    stored = b"".join(it.read_bytes() for it in tmp_path.rglob("*") if it.is_file())
    assert b"T0KEN" not in stored
    assert b"whsec" not in stored
    assert sealing(tmp_path, OLD).open("w1", sealed) == RECEIVER
    assert sealing(tmp_path, NEW, OLD).open("w1", sealed) == RECEIVER
    other = sealing(tmp_path, OLD).seal("w1", Receiver(url="https://elsewhere.example.com"))
    swapped = sealed.partition("#")[0] + "#" + other.partition("#")[2]
    for keys, webhook_id, text in (
        ([NEW], "w1", sealed),
        ([OLD], "w2", sealed),
        ([OLD], "w1", swapped),
        ([OLD], "w1", "no object"),
        ([OLD], "w1", ""),
    ):
        with pytest.raises(SecretError):
            sealing(tmp_path, *keys).open(webhook_id, text)


def test_a_new_key_is_for_webhooks_too(tmp_path: Path) -> None:
    """After `rung secrets rekey` the former key is not needed any more."""
    sealed = sealing(tmp_path, OLD).seal("w1", RECEIVER)
    SecretStore(FolderStore(tmp_path), master_key_of(f"{NEW},{OLD}")).rekey()
    assert sealing(tmp_path, NEW).open("w1", sealed) == RECEIVER


def test_what_is_forgotten_is_gone(tmp_path: Path) -> None:
    """One receiver, or all of a webhook; never another webhook's."""
    seal = sealing(tmp_path, OLD)
    first, second, others = (seal.seal(name, RECEIVER) for name in ("w1", "w1", "w2"))
    seal.forget("w1", others)
    seal.forget("w1", first)
    with pytest.raises(SecretError):
        seal.open("w1", first)
    assert seal.open("w1", second) == RECEIVER
    seal.forget("w1")
    with pytest.raises(SecretError):
        seal.open("w1", second)
    assert seal.open("w2", others) == RECEIVER
