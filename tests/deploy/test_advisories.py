"""`make check` asks for advisories of the pinned packages, and takes no silence for safety."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "advisories.py"
ANSWERING = """\
import json, pathlib, sys
text = pathlib.Path(sys.argv[-1]).read_text()
found = [{"id": "PYSEC-1", "fix_versions": ["9.9"]}]
print(json.dumps({"dependencies": [
    {"name": line.partition("==")[0], "version": "1",
     "vulns": found if line.startswith(("jinja2", "bad")) else []}
    for line in text.split()
]}))
"""
FILES_ALONE = """\
import json
print(json.dumps({"dependencies": [{"name": "jinja2", "skip_reason": "not found"}]}))
"""


@pytest.fixture
def check(tmp_path: Path) -> "Check":
    """Return what runs the script against a stand-in for pip-audit."""
    return Check(tmp_path)


class Check:
    """Runs the script."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stamp = folder / "stamp"

    def __call__(self, audit: str, *pins: str) -> tuple[int, str]:
        """Return its exit code and what it printed."""
        package = self._folder / "pip_audit"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(audit)
        (self._folder / "constraints.txt").write_text("\n".join(pins))
        done = subprocess.run(
            [sys.executable, SCRIPT, self._folder / "constraints.txt", self.stamp],
            env={**os.environ, "PYTHONPATH": str(self._folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr
        return done.returncode, done.stdout


def test_a_known_vulnerability_fails_and_names_the_mend(check: Check) -> None:
    """With the package, its version and the one that mends it."""
    code, said = check(ANSWERING, "good==1", "bad==1")
    assert code == 1
    assert "PYSEC-1: bad 1; mended by 9.9" in said
    assert not check.stamp.exists()


def test_clean_packages_are_not_asked_for_again_that_day(check: Check) -> None:
    """Until they change."""
    assert check(ANSWERING, "good==1")[0] == 0
    assert check("raise SystemExit('asked')", "good==1") == (0, check("", "good==1")[1])
    assert "not checked" in check("raise SystemExit('asked')", "good==2")[1]


@pytest.mark.parametrize("audit", [FILES_ALONE, "raise SystemExit(1)", "print('{')", ""])
def test_where_no_source_answers_it_says_so(check: Check, audit: str) -> None:
    """An index without advisories, no network, an error: one line, no failure, no stamp."""
    code, said = check(audit, "bad==1")
    assert (code, said.count("\n")) == (0, 1)
    assert "not checked" in said
    assert not check.stamp.exists()
