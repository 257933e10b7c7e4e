"""Framework imports: whether the scripts of a code folder import any framework."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE_BYTES_MAX: Final = 1024 * 1024
"""Larger sources are data; parsing one as Python takes a hundred times its size in memory."""

_FILES_MAX: Final = 200
_OWN: Final = frozenset({"rung.core"})


def wants_frameworks(folder: Path) -> bool:
    """Return whether the Python files below a folder import more than the standard library.

    Imports of each other and of `rung.core` do not count. Where this cannot be determined, as
    for very many files or a very large one, the result is True, which costs some milliseconds; a
    wrong False, as for an import by `importlib`, costs the time of the import.
    """
    files = sorted(path for path in folder.rglob("*.py") if path.is_file())
    if not files or len(files) > _FILES_MAX:
        return True
    if any(path.stat().st_size > SOURCE_BYTES_MAX for path in files):
        return True
    top = _names_in(folder)
    return any(
        _is_foreign(name, top | _names_in(path.parent))
        for path in files
        for name in _imported(path)
    )


def _names_in(folder: Path) -> set[str]:
    """Return what a script in a folder can import from there."""
    return {path.stem for path in folder.iterdir() if path.suffix in {"", ".py"}}


def _is_foreign(name: str, own: set[str]) -> bool:
    top = name.partition(".")[0]
    if top == "rung":
        return not any(name == known or name.startswith(f"{known}.") for known in _OWN)
    return top not in sys.stdlib_module_names and top not in own


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports by their full names."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError, SystemError):
        return  # the run reports it; SystemError: the parser's, of concurrent threads
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module == "rung":
                yield from (f"rung.{alias.name}" for alias in node.names)
            else:
                yield node.module
