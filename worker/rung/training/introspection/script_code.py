"""Script code: which modules and functions are a script's own, not a library's."""

import sys
import types
from collections.abc import Iterator
from typing import Any


def is_of_script(module: str) -> bool:
    """Return whether a module is the script's: not Rung's, not installed, not Python's own."""
    package = module.partition(".")[0]
    if package == "rung" or (package in sys.stdlib_module_names and package != "__main__"):
        return False
    return package != "builtins" and not is_installed(module)


def is_installed(module: str) -> bool:
    """Return whether a module is of an installed package, not of the script."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def encloses(thing: Any) -> bool:
    """Return whether a function of the script encloses variables, which may be a state."""
    if not isinstance(thing, types.FunctionType) or not thing.__closure__:
        return False
    return is_of_script(thing.__module__ or "builtins")


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the variables that a function encloses, by name; some may not be assigned yet."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def enclosed_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values of the variables that a function encloses."""
    for name, cell in cells_of(function).items():
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing is assigned yet
            continue
