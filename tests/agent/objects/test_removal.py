"""Deletion of folders in which a trial wrote what it liked, by an agent that is not root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65_534
READ_ONLY = """
os.makedirs("work/a/b")
pathlib.Path("work/a/b/file").write_text("data")
os.symlink("../kept", "work/out")
for part in ("a/b", "a", "."):
    os.chmod(f"work/{part}", 0o500)
"""
DEEP = """
for name in ["work"] + ["d"] * 1_500:
    os.mkdir(name)
    os.chdir(name)
os.fchdir(home)
"""
SCRIPT = f"""
import os, pathlib
from rung.agent.objects.removal import remove_tree
home = os.open(".", os.O_RDONLY)
os.setgid({NOBODY}), os.setuid({NOBODY})
MAKE
remove_tree(pathlib.Path("work"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which root alone may")
@pytest.mark.parametrize("make", [READ_ONLY, DEEP], ids=["read-only", "deep"])
def test_what_a_trial_made_is_deleted(tmp_path: Path, make: str) -> None:
    """Also folders that are read-only, or nested deeper than Python recurses; links stay links."""
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o500)
    for folder in (tmp_path, kept):
        os.chown(folder, NOBODY, NOBODY)
    subprocess.run([sys.executable, "-c", SCRIPT.replace("MAKE", make)], cwd=tmp_path, check=True)
    assert sorted(it.name for it in tmp_path.iterdir()) == ["kept"]
    assert kept.stat().st_mode & 0o777 == 0o500
