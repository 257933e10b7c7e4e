"""What the experiment file names, as a run sees it."""

from pathlib import Path

import pytest

from rung.cache import Source, source, sources_of, variable_of
from rung.config.sections.data import variable_of as checked_variable_of


def test_both_forms() -> None:
    """A place alone, and a place with switches."""
    config = {
        "data": {
            "mine": 1,
            "sources": {
                "train": "s3://bucket/x",
                "val": {"location": "/srv/val", "cache": True, "stream": True},
            },
        }
    }
    assert sources_of(config) == [
        Source("train", "s3://bucket/x"),
        Source("val", "/srv/val", cache=True, stream=True),
    ]


@pytest.mark.parametrize("config", [{}, {"data": {}}, {"data": {"sources": None}}, {"data": 3}])
def test_none(config: dict[str, object]) -> None:
    """Most experiments name none."""
    assert sources_of(config) == []


@pytest.mark.parametrize("name", ["train", "Train-1.x", "a_b"])
def test_variables(name: str) -> None:
    """The check at submission and the agent agree on the variable's name."""
    assert variable_of(name) == checked_variable_of(name)


def test_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 and network file systems are; a disk of this machine and the code are not."""
    kinds = {"/nfs/x": "nfs4", "/disk/x": "ext4", "/sshfs/x": "fuse.sshfs"}
    monkeypatch.setattr(source, "file_system_of", lambda path: kinds[str(path)])
    assert Source("a", "s3://bucket/x").cached
    assert Source("a", "/nfs/x").cached
    assert Source("a", "file:///sshfs/x").cached
    assert not Source("a", "/disk/x").cached
    assert not Source("a", "data/x").cached
    assert Source("a", "/disk/x", cache=True).cached
    assert not Source("a", "/nfs/x", cache=False).cached


def test_file_systems() -> None:
    """The kind of the innermost mount counts."""
    assert source.file_system_of(Path("/proc/self")) == "proc"
