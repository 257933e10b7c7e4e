# ruff: noqa: INP001 - a script, run by itself
"""Holds the pinned packages against published advisories; part of `make check`.

    advisories.py CONSTRAINTS STAMP

Asks the package index by pip-audit. Where it does not answer, or gives no advisories (an index of
files alone), one line says so and nothing fails: a package with a known vulnerability is asked for
first, so that silence is not taken for safety. What was found to be clean is not asked for again
that day: STAMP says of what that holds.

Advisories that cannot be acted on are listed in pyproject.toml, each with its reason, under
`[tool.rung.advisories]`.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, Final

_KNOWN: Final = "jinja2==3.1.2"
"""Has advisories since 2024."""
_ANSWER_S: Final = 3
_PROBE_S: Final = 10.0
_ALL_S: Final = 120.0
_FRESH_S: Final = 24 * 3600.0
_PYPROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"


def main(constraints: Path, stamp: Path) -> int:
    """Print what was found, in a line; return 1 where something must be done."""
    reasons = tomllib.loads(_PYPROJECT.read_text())["tool"]["rung"]["advisories"]
    state = hashlib.sha256(constraints.read_bytes() + repr(sorted(reasons)).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == state and _age_s(stamp) < _FRESH_S:
        return _say(f"advisories: none for the packages of {constraints}, as of today")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as known:
        known.write(_KNOWN)
        known.flush()
        if not _vulnerable(_audit(Path(known.name), _PROBE_S)):
            return _say("advisories: not checked, for no source of them answers from here")
    report = _audit(constraints, _ALL_S)
    if not report:
        return _say(f"advisories: not checked, for it took more than {_ALL_S:g} s")
    found = {
        advisory: names
        for advisory, names in _vulnerable(report).items()
        if advisory not in reasons
    }
    if not found:
        stamp.write_text(state)
        return _say(f"advisories: none for the packages of {constraints}")
    for advisory, about in sorted(found.items()):
        _say(f"{advisory}: {about}")
    _say("advisories: renew these packages, or list them in pyproject.toml with a reason")
    return 1


def _audit(requirements: Path, within_s: float) -> list[dict[str, Any]]:
    """Return what pip-audit says of pinned packages; nothing if it came to no end."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--format", "json"]
    command += ["--progress-spinner", "off", "--timeout", str(_ANSWER_S), "-r", str(requirements)]
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command, check=False, capture_output=True, text=True, timeout=within_s
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, LookupError):
        return []
    return found


def _vulnerable(report: list[dict[str, Any]]) -> dict[str, str]:
    """Return what packages a report names, and what mends them, by the advisory's name."""
    found = {}
    for package in report:
        for advisory in package.get("vulns", []):
            mended = ", ".join(advisory["fix_versions"]) or "no version"
            found[advisory["id"]] = f"{package['name']} {package['version']}; mended by {mended}"
    return found


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _say(text: str) -> int:
    print(text)  # noqa: T201 - this is a command
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
