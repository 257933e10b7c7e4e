"""Calls the function in the code folder: the entrypoint of what `rung.tune` submits."""

import linecache
import platform
import random
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from rung import core
from rung.function.code_folder import ABOUT, FUNCTION, SOURCE, About
from rung.function.run import Leaving, NoResult, Run


def main() -> None:
    """Call the function with the trial's hyperparameters, and report what it returns."""
    about = msgspec.json.decode(Path(ABOUT).read_bytes(), type=About)
    _show_source(about)
    function = _load(about)
    with core.init() as context:
        run = Run(context)
        _seed(context.seed)
        try:
            arguments = [context.hparams, run] if about.takes_run else [context.hparams]
            run.finish(function(*arguments))
        except Leaving:
            run.close()
        except core.InvalidHP:
            raise
        except (NoResult, core.ReportRefused) as error:
            sys.exit(f"{about.name}: {error}")
        except Exception as error:  # noqa: BLE001 - the function's, shown without our frames
            _explain(error)
            traceback.print_exception(error.with_traceback(_own_part(error.__traceback__)))
            sys.exit(1)


def _load(about: About) -> Any:
    """Return the function.

    Raises:
        SystemExit: this Python is another one, or lacks a module; with what to do.
    """
    here = ".".join(platform.python_version_tuple()[:2])
    if here != about.python:
        sys.exit(
            f"{about.name} comes from Python {about.python}, and this agent runs trials with"
            f" Python {here}: use the same version on both sides"
        )
    import cloudpickle  # noqa: PLC0415 - after the check, so that this is what is said

    try:
        return cloudpickle.loads(Path(FUNCTION).read_bytes())
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        version = about.modules.get(name, "")
        sys.exit(
            f"{about.name} uses the module {error.name!r}{version and f' ({name} {version})'},"
            f" which {sys.executable} of this agent does not have: install it there, or send the"
            " folder that it is in with `rung.tune(…, code=FOLDER)`"
        )
    except Exception as error:  # noqa: BLE001 - whatever a module of another version raises
        traceback.print_exception(error)
        used = ", ".join(f"{name} {version}" for name, version in about.modules.items() if version)
        sys.exit(
            f"{about.name} cannot be loaded ({type(error).__name__}: {error}); it was made with"
            f" {used or 'no packages'}: are the versions on this agent others?"
        )


def _show_source(about: About) -> None:
    """Let tracebacks show the lines of a file or a cell that is not on this machine."""
    source = Path(SOURCE)
    if about.file and source.exists() and not Path(about.file).exists():
        lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
        size = sum(map(len, lines))
        linecache.cache[about.file] = (size, None, lines, about.file)


def _seed(seed: int) -> None:
    """Seed the generators of the modules that the function has imported."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)


def _explain(error: BaseException) -> None:
    """Say, for a missing file, in which folder the function runs."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if isinstance(name, str) and not name.startswith("/"):
        error.add_note(
            f"The function runs in a folder of its own: give {name!r} as an absolute path, or send"
            " the folder that it is in with `rung.tune(…, code=FOLDER)`"
        )


def _own_part(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the function's first frame on, all of it if it has none."""
    rest = frames
    while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
        rest = rest.tb_next
    return rest or frames


if __name__ == "__main__":
    main()
