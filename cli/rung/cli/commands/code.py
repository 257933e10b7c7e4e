"""`rung code`, `rung diff`: the code and the configuration of experiments, as they ran."""

import asyncio
import contextlib
import difflib
import io
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import click
import msgspec
from msgspec import Struct

from rung.cli.connection_options import Link, experiment_argument, experiment_ids, linked
from rung.cli.exit_code import FAILED, OK
from rung.cli.output import counted, flat, print_facts, print_json, print_table, size
from rung.client import AsyncClient, Experiment, NotFound
from rung.config.code_archive import unpack
from rung.events import RungError

Change = Literal["added", "removed", "changed"]
_COMPARED_MAX: Final = 1024 * 1024
"""Bytes of a file that is compared line by line."""
_PAIRS_MAX: Final = 1_000_000
"""Pairs of equal lines that a comparison considers; more of them take minutes."""
_COLORS: Final = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@experiment_argument
@click.argument("file", required=False)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder, for all of the files.",
)
@linked
async def code(experiment_id: str, file: str | None, output: Path | None, link: Link) -> None:
    """List the files of an experiment's code as it ran, print one (FILE), or write all (-o).

    With --json: `digest` and `files` (name, size_bytes, executable, link), with -o also `folder`;
    FILE is printed as it is.
    """
    if file is not None and output is not None:
        raise click.UsageError("name a file to print, or a folder with --output")
    target = None if output is None else _checked(output)
    async with link.client() as client:
        experiment = await client.experiment(experiment_id, trials="none")
        if experiment.code_digest is None:
            raise NotFound(f"experiment {experiment.id} was submitted without code")
        near = None if target is None else target.parent
        async with _unpacked(client, experiment, near) as folder:
            files = [_describe(folder, name) for name in _names(folder)]
            if file is not None:
                await asyncio.to_thread(_print_file, folder, file, experiment.id)
                return
            if target is not None:
                await asyncio.to_thread(_place, folder, target)
    if link.json:
        where = {} if target is None else {"folder": str(target)}
        print_json({"digest": experiment.code_digest, "files": files, **where})
    elif target is not None:
        click.echo(f"{counted(len(files), 'file')} of experiment {experiment.id} in {target}")
    else:
        print_table(
            ["file", "size", "mode"],
            [(_arrow(item), size(item.size_bytes), _mode(item)) for item in files],
            right=["size"],
        )


@click.command()
@click.argument("first", metavar="A", shell_complete=experiment_ids)
@click.argument("second", metavar="B", shell_complete=experiment_ids)
@linked
async def diff(first: str, second: str, link: Link) -> int:
    """Show what differs between two experiments: fields of the configuration, lines of the code.

    The configurations are compared as they ran, with every default filled in. Secrets are hidden,
    so that two that differ look the same. Exit code 0: nothing differs; 1: something does.
    With --json: `a` and `b` (the ids), `same`, `config` (path, a, b; absent where one has no such
    field) and `code` (name, change, diff).
    """
    async with link.client() as client, contextlib.AsyncExitStack() as stack:
        a, b = [await client.experiment(it, trials="none") for it in (first, second)]
        config = _compare(a, b)
        files: list[FileDiff] = []
        if a.code_digest != b.code_digest:
            folders = [await stack.enter_async_context(_unpacked(client, it)) for it in (a, b)]
            files = await asyncio.to_thread(_compare_code, *folders)
    same = not config and not files
    if link.json:
        print_json({"a": a.id, "b": b.id, "same": same, "config": config, "code": files})
    else:
        _print_diff(a, b, config, files)
    return OK if same else FAILED


class CodeFile(Struct):
    """A file or link of the code."""

    name: str
    size_bytes: int
    executable: bool
    link: str | None
    """Its target, of a link."""


class FieldDiff(Struct, omit_defaults=True):
    """A field of the configuration that differs; unset where an experiment has none."""

    path: str
    a: Any = msgspec.UNSET
    b: Any = msgspec.UNSET


class FileDiff(Struct):
    """A file that differs."""

    name: str
    change: Change
    diff: str
    """Unified."""


@contextlib.asynccontextmanager
async def _unpacked(
    client: AsyncClient, experiment: Experiment, near: Path | None = None
) -> AsyncIterator[Path]:
    """Yield a temporary folder, below `near` if given, that holds an experiment's code."""
    archive = b"" if experiment.code_digest is None else await client.code(experiment.id)
    with tempfile.TemporaryDirectory(prefix=".rung-code-", dir=near) as temporary:
        yield await asyncio.to_thread(_unpack, archive, Path(temporary))


def _checked(output: Path) -> Path:
    """Return the whole path of a folder to be written, whose parent is there from now on."""
    if output.exists() and any(output.iterdir()):
        raise RungError(f"{output} is not empty; choose another folder with --output")
    whole = output.resolve()
    whole.parent.mkdir(parents=True, exist_ok=True)
    return whole


def _unpack(archive: bytes, temporary: Path) -> Path:
    folder = temporary.resolve() / "code"
    folder.mkdir()
    if archive:
        unpack(archive, folder)
    return folder


def _names(folder: Path) -> list[str]:
    """Return the files and links below a folder, by name."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        found += [str((Path(parent) / name).relative_to(folder)) for name in (*files, *links)]
    return sorted(found)


def _describe(folder: Path, name: str) -> CodeFile:
    path = folder / name
    facts = path.lstat()
    if path.is_symlink():
        return CodeFile(name, 0, executable=False, link=str(path.readlink()))
    return CodeFile(name, facts.st_size, executable=bool(facts.st_mode & 0o100), link=None)


def _arrow(item: CodeFile) -> str:
    return item.name if item.link is None else f"{item.name} -> {item.link}"


def _mode(item: CodeFile) -> str:
    if item.link is not None:
        return "link"
    return "executable" if item.executable else "-"


def _print_file(folder: Path, name: str, experiment_id: str) -> None:
    names = _names(folder)
    if name not in names:
        near = difflib.get_close_matches(name, names)
        hint = f"did you mean {' or '.join(near)}?" if near else "`rung code ID` lists its files"
        raise NotFound(f"the code of experiment {experiment_id} has no file {name!r}; {hint}")
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise RungError(f"{name} is a link that leads to no file ({error.strerror})") from error
    if sys.stdout.isatty():
        click.echo(data.decode(errors="backslashreplace"), nl=False)
    else:
        sys.stdout.buffer.write(data)


def _place(folder: Path, output: Path) -> None:
    """Give a folder its name; one that is there and empty is replaced."""
    folder.chmod(0o755)
    if output.exists():
        output.rmdir()
    os.replace(folder, output)  # noqa: PTH105 - a folder


def _compare(a: Experiment, b: Experiment) -> list[FieldDiff]:
    ours, theirs = dict(flat(a.config)), dict(flat(b.config))
    return [
        FieldDiff(path, ours.get(path, msgspec.UNSET), theirs.get(path, msgspec.UNSET))
        for path in dict.fromkeys([*ours, *theirs])
        if ours.get(path, msgspec.UNSET) != theirs.get(path, msgspec.UNSET)
    ]


def _compare_code(a: Path, b: Path) -> list[FileDiff]:
    ours, theirs = _names(a), _names(b)
    both = sorted({*ours, *theirs})
    return [found for name in both if (found := _compare_file(a, b, name)) is not None]


def _compare_file(a: Path, b: Path, name: str) -> FileDiff | None:
    before, after = _content(a / name), _content(b / name)
    if before == after:
        return None
    change: Change = "added" if before is None else "removed" if after is None else "changed"
    return FileDiff(name, change, "".join(_unified(name, before, after)))


class _Content(Struct, frozen=True):
    """What is compared of a file."""

    data: bytes
    kind: str


def _content(path: Path) -> _Content | None:
    if path.is_symlink():
        return _Content(os.fsencode(path.readlink()), "a link")
    if not path.is_file():
        return None
    executable = bool(path.stat().st_mode & 0o100)
    return _Content(path.read_bytes(), "executable" if executable else "plain")


def _unified(name: str, before: _Content | None, after: _Content | None) -> Iterator[str]:
    """Yield the lines of a unified diff."""
    if before is not None and after is not None and before.kind != after.kind:
        yield f"{name} was {before.kind}, is {after.kind}\n"
    old, new = ([] if side is None else _lines(side.data) for side in (before, after))
    if old is None or new is None or _pairs(old, new) > _PAIRS_MAX:
        yield f"Files a/{name} and b/{name} differ; they are no text, or too long to compare\n"
        return
    labels = (
        "/dev/null" if before is None else f"a/{name}",
        "/dev/null" if after is None else f"b/{name}",
    )
    for line in difflib.unified_diff(old, new, *labels):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[str] | None:
    """Return the lines of a text with their ends, None if it is none, or too long to compare."""
    if b"\0" in data or len(data) > _COMPARED_MAX:
        return None
    try:
        return io.StringIO(data.decode()).readlines()
    except UnicodeDecodeError:
        return None


def _pairs(old: list[str], new: list[str]) -> int:
    """Return how many pairs of equal lines there are, but for those that difflib passes over."""
    counts = Counter(new)
    popular = len(new) // 100 + 1 if len(new) >= 200 else len(new)
    return sum(counts[line] for line in old if counts[line] <= popular)


def _print_diff(
    a: Experiment, b: Experiment, config: list[FieldDiff], files: list[FileDiff]
) -> None:
    if not config and not files:
        click.echo(f"Experiments {a.id} and {b.id} have the same configuration and code.")
        return
    if config:
        print_table(
            ["field", f"{a.id} ({a.name})", f"{b.id} ({b.name})"],
            [(item.path, _shown(item.a), _shown(item.b)) for item in config],
        )
    if config and files:
        click.echo()
    for item in files:
        for line in item.diff.split("\n")[:-1]:
            click.secho(line, fg=_COLORS.get(line[:1]), bold=line.startswith(("---", "+++")))
    if not files:
        code = "no code" if a.code_digest is None else "the same code"
        click.echo()
        print_facts([("code", f"both have {code}")])


def _shown(value: Any) -> str | None:
    if value is msgspec.UNSET:
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
