"""What is sent of a function: itself, its folder, its source; and what cannot be sent."""

import functools
import importlib
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rung.agent.forkserver.framework_imports import wants_frameworks
from rung.config.code_archive import unpack
from rung.function.code_folder import ABOUT, About
from rung.tuning import packing
from rung.tuning.packing import InvalidFunction, packed, takes_run


def _unpacked(function: Callable[..., Any], folder: Path, code: Path | None = None) -> About:
    archive = folder.with_suffix(".tar.gz")
    archive.write_bytes(packed(function, code).data)
    folder.mkdir()
    unpack(archive, folder)
    return msgspec.json.decode((folder / ABOUT).read_bytes(), type=About)


SCRIPT = """
import sys
from pathlib import Path
from rung.tuning.packing import packed
{imports}
FACTOR = 3

def train(params):
    {inside}
    return FACTOR * params["x"]

Path({archive!r}).write_bytes(packed(train, None).data)
"""


def _of_script(tmp_path: Path, imports: str = "", inside: str = "pass") -> tuple[Path, About]:
    """Return the code folder that a script of a user's submits, and what it says."""
    project = tmp_path / "project"
    project.mkdir(exist_ok=True)
    (project / "mine.py").write_text("def double(x): return 2 * x\n")
    (project / "data.csv").write_text("1,2\n")
    archive = tmp_path / "code.tar.gz"
    script = project / "search.py"
    script.write_text(SCRIPT.format(imports=imports, inside=inside, archive=str(archive)))
    subprocess.run([sys.executable, str(script)], check=True, cwd=tmp_path)
    folder = tmp_path / "code"
    folder.mkdir()
    unpack(archive, folder)
    return folder, msgspec.json.decode((folder / ABOUT).read_bytes(), type=About)


def test_a_function_of_a_script_goes_alone(tmp_path: Path) -> None:
    """By value, with the globals that it uses and the source of its file."""
    folder, about = _of_script(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"rung_function"}
    assert (about.name, about.takes_run) == ("train", False)
    assert about.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert "FACTOR = 3" in (folder / "rung_function" / "source.txt").read_text()
    assert not wants_frameworks(folder)


@pytest.mark.parametrize(
    ("imports", "inside"),
    [
        ("import mine", "mine.double(1)"),
        ("from mine import double", "double(1)"),
        ("", "import mine"),
    ],
)
def test_its_own_modules_go_with_their_folder(tmp_path: Path, imports: str, inside: str) -> None:
    """Modules beside the script are not installed where trials run, so the folder is sent."""
    folder, about = _of_script(tmp_path, imports, inside)
    assert {"mine.py", "data.csv", "rung_function"} <= {path.name for path in folder.iterdir()}
    assert about.modules == {"mine": ""}


def test_its_packages_are_named_with_their_versions(tmp_path: Path) -> None:
    """For the message where one is missing; and the agent sees that it wants a framework."""
    folder, about = _of_script(tmp_path, "import msgspec", "msgspec.json")
    assert about.modules == {"msgspec": importlib.metadata.version("msgspec")}
    assert {path.name for path in folder.iterdir()} == {"rung_function"}
    assert wants_frameworks(folder)


def test_a_version_may_be_more_than_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.__version__` is a TorchVersion, a class that is derived from str."""

    class TorchVersion(str):
        __slots__ = ()

    monkeypatch.setattr(msgspec, "__version__", TorchVersion("2.12.0+cpu"))
    about = _unpacked(lambda params: msgspec.json.encode(params["x"]), tmp_path / "code")
    assert about.modules["msgspec"] == "2.12.0+cpu"


def test_a_folder_can_be_named(tmp_path: Path) -> None:
    """Then it is sent, whatever the function uses."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "data.csv").write_text("1")
    about = _unpacked(lambda params: params["x"], tmp_path / "code", folder)
    assert (tmp_path / "code" / "data.csv").read_text() == "1"
    assert about.name == "function"


def test_a_folder_that_has_the_name_of_ours_is_refused(tmp_path: Path) -> None:
    """Nothing of the user's is replaced."""
    (tmp_path / "mine" / "rung_function").mkdir(parents=True)
    with pytest.raises(InvalidFunction, match="rung_function has a name that is taken"):
        packed(lambda params: params["x"], tmp_path / "mine")


def test_the_same_function_gives_the_same_archive() -> None:
    """Code is stored once by its digest."""

    def train(params: Any) -> Any:
        return params["x"]

    first = packed(train, None)
    assert packed(train, None).digest == first.digest
    with tarfile.open(fileobj=BytesIO(first.data)) as archive:
        assert all(member.mtime == 0 for member in archive)


def test_what_cannot_be_pickled_is_named() -> None:
    """The variable, its type, and what to do."""
    lock = threading.Lock()

    def train(params: Any) -> Any:
        with lock:
            return params["x"]

    with pytest.raises(InvalidFunction) as refused:
        packed(train, None)
    assert "train uses `lock` (lock), which cannot be sent to trials" in str(refused.value)
    assert "make it inside of the function" in str(refused.value)


def test_large_captured_data_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their sizes, and what to do."""
    monkeypatch.setattr(packing, "CAPTURED_MAX", 1_000_000)
    table, small = bytes(3 * 1024 * 1024), b"1"

    def train(params: Any) -> Any:
        return params["x"] + len(table) + len(small)

    with pytest.raises(InvalidFunction) as refused:
        packed(train, None)
    assert "train has 3.0 MiB with what it uses from outside" in str(refused.value)
    assert "The largest: `table` (3.0 MiB), `small` (0.0 MiB)" in str(refused.value)
    assert "load it inside of the function" in str(refused.value)


def test_modules_of_several_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One code folder is sent; the message names both."""
    for name in ("first_of_two", "second_of_two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("def f(x): return x\n")
        monkeypatch.syspath_prepend(tmp_path / name)

    def train(params: Any) -> Any:
        import first_of_two  # type: ignore[import-not-found]  # noqa: PLC0415
        import second_of_two  # type: ignore[import-not-found]  # noqa: PLC0415

        return first_of_two.f(second_of_two.f(params["x"]))

    with pytest.raises(InvalidFunction, match=r"first_of_two in .*second_of_two in .*code=FOLDER"):
        packed(train, None)


class _Callable:
    def __call__(self, params: Any, run: Any) -> None:
        """Report."""


def _run_by_name(params: Any, run: Any = None) -> None:
    """Report."""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda _: 1, False),
        (lambda *, params: 1, None),
        (lambda params, run: 1, True),
        (_run_by_name, True),
        (lambda params, data=1: 1, False),
        (functools.partial(lambda data, params: 1, 5), False),
        (_Callable(), True),
        (lambda: 1, None),
        (lambda a, b, c: 1, None),
        (lambda params, *, needed: 1, None),
        (5, None),
    ],
)
def test_a_function_has_one_parameter_or_two(function: Any, *, expected: bool | None) -> None:
    """The second one is the run; anything else is refused with what to write."""
    if expected is None:
        with pytest.raises(InvalidFunction, match=r"write `def train\(params\)"):
            takes_run(function)
    else:
        assert takes_run(function) is expected


async def _coroutine(params: Any) -> None:
    """Nothing."""


def test_a_coroutine_is_refused() -> None:
    """It would return a coroutine in place of the metric."""
    with pytest.raises(InvalidFunction, match="is a coroutine"):
        takes_run(_coroutine)
