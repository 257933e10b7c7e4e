"""The tree: what a newcomer may rely on when looking for something."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rung

_ROOT = Path(__file__).parents[1]
_PROJECT: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_TOOLS = _PROJECT["tool"]
_BESIDE = ("tests", "deploy/local")
"""Roots of what is not part of the distribution."""

_CLIENTS = {"aiokafka", "faust", "kafka", "mode"}
_IMPORT = re.compile(rf"^\s*(from|import) ({'|'.join(sorted(_CLIENTS))})\b", re.MULTILINE)

ROOTS = sorted(
    str(path.parent.relative_to(_ROOT))
    for pattern in ("*/rung", "services/*/rung")
    for path in _ROOT.glob(pattern)
    if not path.parent.name.startswith(".") and any(path.rglob("*.py"))
)
SERVICES = sorted(path for path in (_ROOT / "services").glob("*") if path.is_dir())
PACKAGES = sorted(
    package
    for root in ROOTS
    for package in (_ROOT / root / "rung").iterdir()
    if package.is_dir() and package.name != "__pycache__"
)
FOLDERS = sorted({path.parent for package in PACKAGES for path in package.rglob("*.py")})
"""Packages and their sub-packages."""

_MODULES_MAX = 17
"""In a folder, besides its `__init__.py`."""


@pytest.mark.parametrize(
    "listed",
    [
        _TOOLS["hatch"]["build"]["dev-mode-dirs"],
        [
            p.removesuffix("/rung")
            for p in _TOOLS["hatch"]["build"]["targets"]["wheel"]["packages"]
        ],
        [p for p in _TOOLS["pytest"]["ini_options"]["pythonpath"] if p not in _BESIDE],
        [p for p in _TOOLS["ruff"]["src"] if p not in _BESIDE],
        [
            p.removeprefix("$MYPY_CONFIG_FILE_DIR/")
            for p in _TOOLS["mypy"]["mypy_path"]
            if not p.endswith(_BESIDE)
        ],
    ],
    ids=["dev-mode-dirs", "wheel", "pytest", "ruff", "mypy"],
)
def test_every_list_of_roots_names_every_root(listed: list[str]) -> None:
    """A root that one of the lists forgets is not importable somewhere."""
    assert sorted(listed) == ROOTS


def test_one_root_has_the_init_of_all() -> None:
    """There is one `rung/__init__.py`, and it finds the parts in all roots; so does its spec.

    A second one would hide the names of the first, or the parts. Tools that ask for the spec of
    `rung` would see the parts of one root only.
    """
    found = [root for root in ROOTS if (_ROOT / root / "rung" / "__init__.py").exists()]
    assert found == ["cli"]
    assert (_ROOT / "cli" / "rung" / "py.typed").exists()
    spec = importlib.util.find_spec("rung")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    assert {str(_ROOT / root / "rung") for root in ROOTS} <= set(spec.submodule_search_locations)


def test_the_init_costs_nothing() -> None:
    """`import rung` imports no part, and each of its names is there when it is asked for."""
    ask = "import sys, rung; print(*(name for name in sys.modules if name.startswith('rung.')))"
    ran = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == ""
    assert all(hasattr(rung, name) for name in rung.__all__)
    assert not hasattr(rung, "nothing_of_this_name")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_every_package_is_typed_and_one_screen(folder: Path) -> None:
    """Each tells type checkers that it is annotated, and readers what it is; it is no drawer."""
    assert (folder / "py.typed").exists()
    assert (folder / "__init__.py").read_text().startswith('"""')
    assert len(list(folder.glob("*.py"))) <= 1 + _MODULES_MAX


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_services_look_the_same_inside(service: Path) -> None:
    """Who knows one service knows all."""
    package = service / "rung" / service.name.replace("-", "_")
    files = {path.name for path in package.iterdir()}
    decides = service.name in {"searcher", "scheduler", "checkpoint-gc"}

    assert (service / "README.md").exists()
    assert {"__init__.py", "__main__.py", "service.py", "settings.py", "py.typed"} <= files
    assert ("processor.py" in files) == decides
    assert len((package / "__main__.py").read_text().splitlines()) <= 60


def test_no_module_is_a_drawer() -> None:
    """What has no name of its own has no place."""
    drawers = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
    found = [
        str(path.relative_to(_ROOT))
        for package in PACKAGES
        for path in package.rglob("*.py")
        if path.stem in drawers
    ]

    assert found == []


def test_what_the_fast_lane_leaves_out_belongs_to_other_lanes() -> None:
    """A test without a mark in a folder that it does not look into would be run by no lane."""
    makefile, tests = (_ROOT / "Makefile").read_text(), _ROOT / "tests"
    (named,) = re.findall(r"^OTHER_LANES := (.*)$", makefile, re.MULTILINE)
    files = [file for name in named.split() for file in (tests / name).glob("**/test_*.py")]
    assert len(files) > 30
    unmarked = [
        f"{file.parent.name}/{file.name}: {test.name}"
        for file in files
        for tree in [ast.parse(file.read_text())]
        if not any(map(_marks_all, tree.body))
        for test in tree.body
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if test.name.lower().startswith("test")
        if not any(map(_is_of_a_lane, test.decorator_list))
    ]
    assert unmarked == []


_LANES = ("e2e", "processes", "stores", "sim", "attacks", "cluster", "horovod")


def _marks_all(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == "pytestmark"
        and _is_of_a_lane(statement.value)
    )


def _is_of_a_lane(mark: ast.expr) -> bool:
    return any(f"pytest.mark.{lane}" in ast.unparse(mark) for lane in _LANES)


def _clients_of(tree: ast.Module) -> dict[str, str]:
    """Return what a module imports of the clients of Kafka, by name."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {(it.asname or it.name).split(".")[0]: it.name for it in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {it.asname or it.name: f"{module}.{it.name}" for it in names}
            case _:
                pass
    return {name: full for name, full in found.items() if full.split(".")[0] in _CLIENTS}


@pytest.mark.parametrize(
    "path",
    [
        path
        for root in ROOTS
        for path in (_ROOT / root).rglob("*.py")
        if _IMPORT.search(path.read_text())
    ],
    ids=lambda path: str(path.relative_to(_ROOT)),
)
def test_the_clients_of_kafka_are_used_as_they_are_documented(path: Path) -> None:
    """No private attribute is read of aiokafka, Faust or kafka-python, and none is overridden."""
    tree = ast.parse(path.read_text())
    clients = _clients_of(tree)
    found = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match(r"_[^_]", node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(
            isinstance(name, ast.Name) and name.id in clients
            for base in node.bases
            for name in ast.walk(base)
        ):
            found += [
                f"{node.name}.{it.name}"
                for it in node.body
                if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef))
                and re.match(r"_[^_]", it.name)
            ]
    assert found == []
