"""Digests: the same whatever the way, for files of any size."""

import hashlib
import os
from pathlib import Path

import pytest
from blake3 import blake3

from rung.objects import ObjectError
from rung.objects.digest import CHUNK, digest_file, hasher

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    """Size and digest are those of all bytes, by either algorithm."""
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == (size, blake3(data).hexdigest())
    expected = hashlib.sha256(data).hexdigest()
    assert digest_file(tmp_path / "file", "sha256") == (size, expected)
    assert digest_file(tmp_path / "file", mapped=True) == (size, blake3(data).hexdigest())


def test_an_unknown_algorithm_is_refused() -> None:
    """What a newer Rung may use is not taken for damage."""
    with pytest.raises(ObjectError, match="newer Rung"):
        hasher("blake9")
