"""Child: a forked process before and after the user's code; it becomes the run's main process.

It runs a script or module as `__main__` just as a fresh interpreter would: `sys.argv`,
`sys.path[0]`, tracebacks without frames of the platform, exit codes, threads joined, `atexit`
called, files closed. What differs from a fresh interpreter: modules that the fork server imported
are there already, and the hash seed is the fork server's. A script beside which there are modules
with names of these would import them in place of its own: it gets a fresh interpreter.

Each main process is a *subreaper*: what its descendants leave behind stays below it until it ends,
and is then reparented to the fork server, which kills it. So nothing a script starts can outlive
its run, daemons included.
"""

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import gc
import importlib.machinery
import io
import itertools
import multiprocessing.process
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

from rung.agent.forkserver.messages import Command, Launch, launch_in
from rung.agent.forkserver.threads import set_threads
from rung.agent.isolation.namespaces import drop_capabilities
from rung.core.ipc import stack_dump_signal

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_libc: Final = ctypes.CDLL(None, use_errno=True)

_MODULES: Final = (".py", *importlib.machinery.EXTENSION_SUFFIXES)
EXIT_NOT_FOUND: Final = 127
EXIT_NOT_EXECUTABLE: Final = 126


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init's."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become(request: int, stdout: int, stderr: int, parent: int, modules: int) -> NoReturn:
    """Turn this freshly forked process into the run's main process; never returns.

    Args:
        request: a file with the `Launch` that describes the process.
        stdout: the pipe that becomes stdout.
        stderr: the pipe that becomes stderr.
        parent: the process number of the fork server.
        modules: how many modules the fork server had imported.
    """
    code = 1
    try:
        launch = launch_in(request)
        os.close(request)
        _detach(parent, launch)
        _set_name(launch.process)
        _redirect(stdout, stderr)
        os.environ.update(launch.environment)
        _write_secrets(launch)
        os.chdir(launch.folder)
        if launch.command.how == "execute":
            _execute(launch.command)
        if _hides_modules(_search_folder(launch.command)):
            _execute(_fresh(launch.command))
        _reset_module_state(launch.folder)
        set_threads(launch.threads)
        code = _run(launch.command, modules, launch.folder)
    except BaseException:  # noqa: BLE001 - nothing may propagate into the fork server's loop
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _write_secrets(launch: Launch) -> None:
    """Make the folder of secret files, in memory and for this process's user alone."""
    if not launch.secrets:
        return
    folder = Path(launch.secrets_folder)
    folder.mkdir(mode=0o700)
    for name, text in launch.secrets.items():
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)


def _detach(parent: int, launch: Launch) -> None:
    os.setsid()
    _set_oom_score()
    if launch.view is not None:
        drop_capabilities()
    if launch.user is not None:
        _become_user(launch.user, launch.groups)
    die_with_parent()
    become_subreaper()
    if os.getppid() != parent:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _set_oom_score() -> None:
    """Make the OOM killer choose the run before the platform's processes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _set_name(process: str) -> None:
    """Have `top` and `ps -o comm` show the run; the kernel keeps 15 bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(process, encoding="utf-8")


def _become_user(user: int, groups: list[int]) -> None:
    """Switch irrevocably to a user that is in its own group and these, and in no other.

    The kernel clears the parent-death signal and the dumpable flag at that; the caller sets the
    first again, this function the second.
    """
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    drop_capabilities()
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _redirect(stdout: int, stderr: int) -> None:
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    faulthandler.enable(file=2, all_threads=False)
    stack_dump_signal.listen()


def _reset_module_state(folder: str) -> None:
    """Reset what imported modules keep of the fork server's process.

    The generators of NumPy and torch would have the same state in all runs (`random` reseeds
    itself after a fork); multiprocessing would look for the script in the fork server's folder.
    """
    origin: Any = multiprocessing.process
    origin.ORIGINAL_DIR = folder
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _search_folder(command: Command) -> Path:
    """Return the folder in which Python code finds its own modules first."""
    if command.how == "module":
        return Path.cwd()
    return Path(command.argv[0]).resolve().parent


def _hides_modules(folder: Path) -> bool:
    """Return whether a folder has modules with the names of some that are imported already."""
    try:
        found = list(os.scandir(folder))
    except OSError:
        return False  # the interpreter reports it
    names = {entry.name.partition(".")[0] for entry in found if entry.name.endswith(_MODULES)}
    if any(name in sys.modules for name in names - {"__main__"}):
        return True
    packages = (entry for entry in found if entry.name in sys.modules and entry.is_dir())
    return any(Path(entry, "__init__.py").is_file() for entry in packages)


def _fresh(command: Command) -> Command:
    """Return the command that runs Python code in a fresh interpreter."""
    option = ["-m"] if command.how == "module" else []
    return Command("execute", [sys.executable, *option, *command.argv])


def _execute(command: Command) -> NoReturn:
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execvp(command.argv[0], command.argv)  # noqa: S606 - executing it is the point
    except OSError as error:
        _flush()
        os.write(2, f"{command.argv[0]}: {error.strerror}\n".encode())
        missing = error.errno == errno.ENOENT
        os._exit(EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE)


def _run(command: Command, modules: int, folder: str) -> int:
    """Run Python code as `__main__` and return the exit code of the process."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        if command.how == "module":
            _run_module(command.argv, main)
        else:
            _run_script(command.argv, main)
        code = 0
    except SystemExit as error:
        code = _code_of(error)
    except KeyboardInterrupt as error:
        _print_exception(error)
        code = 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - as an interpreter does with what is uncaught
        _print_exception(error)
        code = 1
    _finish(main, modules, folder)
    return code


def _run_script(argv: list[str], main: ModuleType) -> None:
    path = Path(argv[0]).absolute()
    file = str(path)
    sys.argv = list(argv)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        source = path.read_bytes()
    except OSError as error:
        message = f"python: can't open file {file!r}: {error.strerror}"
        print(message, file=sys.stderr)  # noqa: T201 - as an interpreter does
        raise SystemExit(2) from None
    main.__dict__.update(__file__=file, __builtins__=sys.modules["builtins"], __cached__=None)
    exec(compile(source, file, "exec"), main.__dict__)  # noqa: S102 - the user's script


def _run_module(argv: list[str], main: ModuleType) -> None:
    sys.argv = ["-m", *argv[1:]]
    sys.path.insert(0, str(Path.cwd()))
    main.__dict__.update(__builtins__=sys.modules["builtins"])
    runpy: Any = __import__("runpy")
    runpy._run_module_as_main(argv[0])  # noqa: SLF001 - the function behind `python -m`


def _code_of(error: SystemExit) -> int:
    match error.code:
        case None:
            return 0
        case int():
            return error.code & 0xFF
        case other:
            print(other, file=sys.stderr)  # noqa: T201 - as an interpreter does
            return 1


def _print_exception(error: BaseException) -> None:
    """Print the traceback from the user's first frame on."""
    with contextlib.suppress(Exception):
        trimmed = error.with_traceback(_users_part(error.__traceback__))
        sys.excepthook(type(error), trimmed, trimmed.__traceback__)


def _users_part(frames: TracebackType | None) -> TracebackType | None:
    own = {__file__}
    rest = frames
    while rest is not None and (
        rest.tb_frame.f_code.co_filename in own
        or rest.tb_frame.f_code.co_filename.startswith("<frozen runpy")
    ):
        rest = rest.tb_next
    return rest


def _finish(main: ModuleType, modules: int, folder: str) -> None:
    """Shut down as an interpreter does, but without clearing all modules, which takes long.

    The user's modules are cleared, so that files left open are written and workers stopped.
    """
    shut_down: Any = threading
    with contextlib.suppress(Exception):
        shut_down._shutdown()  # noqa: SLF001 - joins the threads that are no daemons
    atexit._run_exitfuncs()  # noqa: SLF001 - `os._exit` would skip them
    _flush()
    for module in (main, *_imported_from(folder, modules)):
        module.__dict__.clear()
    gc.collect()


def _imported_from(folder: str, modules: int) -> list[ModuleType]:
    """Return the modules of a folder, of those imported after the first `modules`.

    Only these are touched: touching a module writes its reference count, and for each of the
    thousands that the fork server has imported that would copy a page.
    """
    newest = itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - modules))
    found = [sys.modules[name] for name in list(newest)]
    files = [(module, getattr(module, "__file__", None)) for module in found]
    return [m for m, file in files if isinstance(file, str) and file.startswith(folder)]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
