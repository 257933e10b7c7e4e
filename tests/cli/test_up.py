"""`rung up` in the background, and `rung down`, which ends it."""

from pathlib import Path

import pytest

from cli.conftest import Rung


@pytest.mark.parametrize("before", [True, False])
def test_what_a_detached_one_said_is_for_its_owner(
    before: bool,  # noqa: FBT001 - a parameter of the test
    rung: Rung,
    tmp_path: Path,
) -> None:
    """Whoever may read the folder, the token is in it."""
    data, said = tmp_path / "data", tmp_path / "data" / "up.out"
    data.mkdir(mode=0o755)
    (data / "version").write_text("99\n")
    if before:
        said.touch(0o644)
    result = rung("up", "--detach", "--port", "0", "--data", str(data))
    assert "newer Rung" in result.err
    assert "newer Rung" in said.read_text()
    assert said.stat().st_mode & 0o777 == 0o600
