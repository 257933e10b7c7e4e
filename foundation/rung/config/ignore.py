"""Which files of a code folder stay at home: `.rungignore`, in the syntax of `.gitignore`."""

from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from rung.config.code_archive import InvalidCode

FILES: Final = (".rungignore", ".detignore")
"""Where the patterns are; the first file that exists counts."""

ALWAYS: Final = (
    ".git",
    ".venv",
    "__pycache__",
    "*.pyc",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".DS_Store",
)
"""Left out everywhere, unless the file says otherwise (`!.venv`)."""


class Ignore:
    """The patterns that hold for a code folder."""

    def __init__(self, folder: Path) -> None:
        """Read the patterns.

        Raises:
            InvalidCode: the file cannot be read.
        """
        lines: list[str] = []
        for name in FILES:
            try:
                lines = (folder / name).read_text(encoding="utf-8").splitlines()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidCode(f"{folder / name} cannot be read: {error}") from error
            break
        try:
            self._spec = GitIgnoreSpec.from_lines([*ALWAYS, *lines])
        except ValueError as error:
            raise InvalidCode(f"{folder / name}: {error}") from error

    def matches(self, name: str, *, is_folder: bool) -> bool:
        """Return whether a file, or a folder with all that is in it, is left out."""
        return self._spec.match_file(f"{name}/" if is_folder else name)
