"""Packs a function as the code of an experiment.

The function goes by cloudpickle: what is defined in a script or a notebook by value, what comes
from a module by its name. Modules that lie in a folder of the user's, rather than among the
installed packages, are sent with that folder.
"""

import contextlib
import dis
import importlib.metadata
import importlib.util
import inspect
import io
import linecache
import pickletools
import platform
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import cloudpickle
import msgspec

from rung.config.code_archive import CodeArchive, Member, check_members, write
from rung.config.code_folder import pack
from rung.events import RungError
from rung.function.code_folder import ABOUT, FOLDER, FUNCTION, MODULES, SOURCE, About

CAPTURED_MAX: Final = 64 * 1024 * 1024
"""Bytes of a function with what it captures; each trial loads them."""


class InvalidFunction(RungError):
    """A function that cannot be sent; the message says why and what to do."""


def takes_run(function: Callable[..., Any]) -> bool:
    """Return whether a function has a second parameter.

    Raises:
        InvalidFunction: it is none, or has another number of parameters.
    """
    if not callable(function):
        raise InvalidFunction(f"{function!r} is no function; write `def train(params): …`")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidFunction(
            f"{name_of(function)} is a coroutine or a generator; write a function that returns the"
            " metric, or that reports it: `def train(params, run): …`"
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [it for it in parameters if it.kind in kinds]
    needed = [it for it in places if it.default is inspect.Parameter.empty]
    keywords = [
        it.name
        for it in parameters
        if it.kind is inspect.Parameter.KEYWORD_ONLY and it.default is inspect.Parameter.empty
    ]
    if not places or len(needed) > 2 or keywords:
        raise InvalidFunction(
            f"{name_of(function)}{inspect.signature(function)}: write `def train(params)`, which"
            " returns the metric, or `def train(params, run)`, which reports it"
        )
    return len(needed) == 2 or (len(places) > 1 and places[1].name == "run")


def name_of(function: Callable[..., Any]) -> str:
    """Return what to call a function, also one that has no name of its own."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return "function" if name == "<lambda>" else name


def packed(function: Callable[..., Any], code: Path | None) -> CodeArchive:
    """Return the code of an experiment that calls a function.

    Args:
        function: to be called.
        code: the folder to send with it; None: that of the function's own modules, if any.

    Raises:
        InvalidFunction: it, or what it captures, cannot be sent.
        InvalidCode: the folder cannot be sent.
    """
    pickled = _pickled(function)
    used = sorted(_modules_in(pickled) | _imported_by(function))
    folder = _folder_of(used) if code is None else code
    code_object = getattr(inspect.unwrap(function), "__code__", None)
    file = code_object.co_filename if isinstance(code_object, CodeType) else ""
    about = About(
        name=name_of(function),
        takes_run=takes_run(function),
        python=".".join(platform.python_version_tuple()[:2]),
        modules={name: _version(name) for name in _tops(used)},
        file=file,
    )
    files = {
        FUNCTION: pickled,
        ABOUT: msgspec.json.format(msgspec.json.encode(about)),
        MODULES: "".join(f"import {name}\n" for name in _tops(used)).encode(),
        SOURCE: "".join(linecache.getlines(file)).encode(),
    }
    members = [] if folder is None else list(_members(pack(folder)))
    taken = [member.name for member in members if member.name.partition("/")[0] == FOLDER]
    if taken:
        raise InvalidFunction(f"{folder}/{FOLDER} has a name that is taken; rename it")
    members += [Member(name, tarfile.REGTYPE, content=data) for name, data in files.items()]
    return write(check_members(members).values())


def _pickled(function: Callable[..., Any]) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(function)
    except Exception as error:  # whatever an object raises that is not made to be pickled
        found = _captured(function)
        named = (f"`{name}` ({type(value).__name__})" for name, value, size in found if not size)
        culprit = next(named, "something")
        raise InvalidFunction(
            f"{name_of(function)} uses {culprit}, which cannot be sent to trials ({error}): make"
            " it inside of the function"
        ) from error
    if len(pickled) > CAPTURED_MAX:
        sizes = sorted(((size or 0, name) for name, _, size in _captured(function)), reverse=True)
        largest = ", ".join(f"`{name}` ({_mib(size)})" for size, name in sizes[:3])
        raise InvalidFunction(
            f"{name_of(function)} has {_mib(len(pickled))} with what it uses from outside, and at"
            f" most {_mib(CAPTURED_MAX)} are sent to each trial. The largest: {largest or 'it'}."
            " Save such data to a file, and load it inside of the function"
        )
    return pickled


def _captured(function: Callable[..., Any]) -> Iterator[tuple[str, Any, int | None]]:
    """Yield what a function uses from outside: name, value, and pickled size if there is one."""
    try:
        found = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return
    for name, value in {**found.globals, **found.nonlocals}.items():
        try:
            yield name, value, len(cloudpickle.dumps(value))
        except Exception:  # noqa: BLE001 - that is the question
            yield name, value, None


def _modules_in(pickled: bytes) -> set[str]:
    """Return the modules whose names are in a pickle, which are those that loading it imports."""
    texts = {arg for _, arg, _ in pickletools.genops(pickled) if isinstance(arg, str)}
    return {text for text in texts if text in sys.modules}


def _imported_by(function: Callable[..., Any]) -> set[str]:
    """Return the modules that a function's own code imports when it runs."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    found: set[str] = set()
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        item = waiting.pop()
        waiting += [const for const in item.co_consts if isinstance(const, CodeType)]
        imports = (it.argval for it in dis.get_instructions(item) if it.opname == "IMPORT_NAME")
        found.update(name for name in imports if name)
    return found


def _tops(modules: list[str]) -> list[str]:
    """Return the packages of modules, without Python's own and Rung."""
    tops = dict.fromkeys(name.partition(".")[0] for name in modules)
    own = {"rung", "__main__", "__mp_main__", "cloudpickle"}
    return [top for top in tops if top not in sys.stdlib_module_names and top not in own]


def _folder_of(modules: list[str]) -> Path | None:
    """Return the folder of modules that are not installed, None if there are none.

    Raises:
        InvalidFunction: there are several.
    """
    found: dict[Path, str] = {}
    for top in _tops(modules):
        place = _place(top)
        if place is not None and not _is_installed(place):
            found.setdefault(place, top)
    if len(found) > 1:
        listed = ", ".join(f"{name} in {folder}" for folder, name in found.items())
        raise InvalidFunction(
            f"the function uses modules of several folders ({listed}): say which one to send with"
            " `rung.tune(…, code=FOLDER)`, or install the others"
        )
    return next(iter(found), None)


def _place(top: str) -> Path | None:
    """Return the folder from which a module or package is imported, None if there is none."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    return Path(spec.origin).resolve().parent if spec.has_location and spec.origin else None


def _is_installed(folder: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return True
    paths = sysconfig.get_paths()
    places = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(folder.is_relative_to(Path(place).resolve()) for place in places)


def _version(top: str) -> str:
    """Return the version of a module's package, empty if it has none."""
    known = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(known, str):
        return str(known)  # that of torch is a class of its own, which JSON does not know
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(top)
    return ""


def _members(archive: CodeArchive) -> Iterator[Member]:
    """Yield what is in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as source:
        for info in source:
            file = source.extractfile(info) if info.isreg() else None
            content = file.read() if file else b""
            executable = bool(info.mode & 0o100) and info.isreg()
            yield Member(info.name, info.type, executable, info.linkname, content)


def _mib(size: int) -> str:
    return f"{size / 1024**2:,.1f} MiB"
