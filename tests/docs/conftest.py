"""A fresh virtual environment with the built wheel, as a reader of the guides has it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rung.cli.local.data_folder import is_running
from support.code_blocks import ROOT, blocks, missing_line

_LEFT_OUT: Final = ("rung-", "_editable_impl_rung", "pip")
TUTORIAL: Final = ROOT / "docs/TUTORIAL.md"
_AT_EXIT: Final = "trap 'pwd > ~/.folder' EXIT\n"


class Reader:
    """Does what a page says, block by block, in a home and a project folder of its own.

    Scripts and files go to the folder under the names that the page gives them; commands run in a
    shell; what a page shows as output is compared with what the last command printed. What the
    wheel needs is not fetched, but is that of the tests' own environment.
    """

    def __init__(self, home: Path, wheel: Path) -> None:
        self.home = home
        self.folder = home
        """Where the reader is."""
        self.printed = ""
        (home / wheel.name).symlink_to(wheel)
        self._environment = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("RUNG_", "PYTHON", "VIRTUAL_ENV", "PIP_"))
        } | {
            "HOME": str(home),
            "PATH": f"{Path(sys.base_exec_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "NO_COLOR": "1",
        }

    def follow(self, page: Path, *steps: str) -> None:
        """Do everything on a page, or the named steps alone."""
        for block in blocks(page):
            if steps and block.name not in steps:
                continue
            where = f"{page.name}:{block.line}"
            match block.language, block.name:
                case "sh", "wheel":
                    assert list(self.folder.glob("rung-*.whl"))
                case "sh", step:
                    self.shell(block.text, where, code=1 if step == "differs" else 0)
                    if step == "venv":
                        self.lend_packages()
                case "text", _:
                    missing = missing_line(block.text, self.printed)
                    assert missing is None, f"{where}: {missing!r} is not in\n{self.printed}"
                case "python", name if name.startswith("of "):
                    pass  # of another tool, or a part of a program
                case "python", "":
                    self.shell(f"python - <<'END'\n{block.text}\nEND", where)
                case "python" | "yaml", name if name:
                    (self.folder / name).write_text(block.text)
                case _:
                    raise AssertionError(f"{where}: what is to be done with this?")

    def shell(self, commands: str, where: str, code: int = 0) -> None:
        """Run commands as in a terminal with the environment activated."""
        commands = commands.replace("rung up --detach", "rung up --detach --port 0")
        activate = self.home / "rung-env/bin/activate"
        done = subprocess.run(
            [
                "bash",
                "-e",
                "-c",
                f"{_AT_EXIT}[ ! -e {activate} ] || source {activate}\n{commands}",
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment,
            timeout=200,
        )
        self.printed = done.stdout
        self.folder = Path((self.home / ".folder").read_text().strip())
        assert done.returncode == code, f"{where}: {commands}\n{done.stdout}\n{done.stderr}"

    def lend_packages(self) -> None:
        """Put links into the environment to what the tests' own has, without Rung and pip."""
        [packages] = (self.home / "rung-env").glob("lib/python*/site-packages")
        found = {
            item.name: item
            for folder in reversed(sys.path)
            if folder.endswith(("site-packages", "dist-packages"))
            for item in Path(folder).iterdir()
            if not item.name.startswith(_LEFT_OUT) and item.suffix != ".pth"
        }
        for older in packages.glob("setuptools*"):  # comes with the environment, and is in the way
            shutil.rmtree(older)
        for name, item in found.items():
            if not (packages / name).exists():
                (packages / name).symlink_to(item)

    def stop(self) -> None:
        """Stop the Rung that is still running."""
        data = self.home / ".rung"
        if data.exists() and is_running(data):
            self.shell("rung down", "afterwards")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", *build, "--wheel-dir", str(folder), str(ROOT)], check=True
    )
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home in which Rung is installed as the tutorial says."""
    first = Reader(tmp_path_factory.mktemp("installed"), wheel)
    first.follow(TUTORIAL, "venv", "install")
    return first.home


@pytest.fixture
def reader(wheel: Path, tmp_path: Path) -> Iterator[Reader]:
    """Return a reader of the tutorial, who has nothing but the wheel; stop its Rung at the end."""
    made = Reader(tmp_path, wheel)
    yield made
    made.stop()


@pytest.fixture
def later_reader(installed: Path, tmp_path: Path, wheel: Path) -> Iterator[Reader]:
    """Return a reader who has installed Rung, in a new folder; stop its Rung at the end."""
    made = Reader(tmp_path, wheel)
    (tmp_path / "rung-env").symlink_to(installed / "rung-env")
    made.folder = tmp_path / "project"
    made.folder.mkdir()
    yield made
    made.stop()
