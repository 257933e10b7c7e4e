# ruff: noqa: INP001 - a script, run by itself while an image is built
"""Prints what a role of Rung needs beside Rung itself, one requirement a line.

pip has no way to install the dependencies of a project without the project, and an image that
installs both in one step fetches everything again whenever a line of code changes.

    python requirements.py pyproject.toml kafka s3
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """List the requirements of the project and of some of its extras.

    Raises:
        SystemExit: the project has no such extra.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    known: dict[str, list[str]] = project["optional-dependencies"]
    if missing := [extra for extra in extras if extra not in known]:
        raise SystemExit(f"{pyproject} has no extra {missing}: use some of {sorted(known)}")
    return [*project["dependencies"], *(line for extra in extras for line in known[extra])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])) + "\n")
