# ruff: noqa: INP001, S603, T201 - a script, run by itself; it prints, and runs pip
"""Builds Horovod's wheel for the torch of a virtual environment, keeps it, and installs it there.

    deploy/horovod/build VENV [--cache FOLDER] [--jobs N] [--no-install]

The build takes about eight minutes on two cores; its wheel is kept, so that the next virtual
environment with the same Python and the same torch has it in seconds. It is for torch alone, over
Gloo: MPI, TensorFlow and MXNet are left out. Set HOROVOD_GPU_OPERATIONS=NCCL, and what else
Horovod's own guide names, for a machine with GPUs: it is passed on, and such a wheel kept apart.

The virtual environment is only read while building: the build has one of its own, which sees the
other's torch. It needs a C++ compiler that knows C++20 (g++ 11 or clang 14) and make.

Two things are changed in the sources. Two of its CMake files set C++14; torch's headers ask for
C++17 since 2.1 and for C++20 by now, so that the build stops in the first of them. And Horovod
forgets HOROVOD_GLOO_IFACE after its first connections: those that it trains over go to whatever
the machine's own name stands for, which often is the loopback, where no other machine is.
"""

import argparse
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.28.1"
DIGEST = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""The sdist's SHA-256: other sources than these were not tried."""

REVISION = "2"
"""Of what is changed in the sources: wheels of another one are not taken."""

_STANDARD = ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)")
_DEVICE = """\
  device_attr.iface = {}gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
"""
_PATCHES = {
    "CMakeLists.txt": _STANDARD,
    "horovod/torch/CMakeLists.txt": _STANDARD,
    "horovod/common/gloo/gloo_context.cc": (
        _DEVICE.format(""),
        _DEVICE.format("global_context."),
    ),
}
"""What a file says once, and what it says instead."""
_PLAIN = re.compile(r"[\w/.-]+")
"""Paths that its CMake files take apart rightly: they read them as patterns."""
_BUILD_TOOLS = ("setuptools<80", "wheel", "packaging", "cmake>=3.18,<4")
_RUNTIME = ("cffi>=1.4", "cloudpickle", "packaging", "psutil", "pyyaml")
_SWITCHES = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}
_ASK = """\
import json, sys, sysconfig
try:
    import torch
except ImportError:
    torch = None
print(json.dumps({
    "torch": torch and torch.__version__,
    "python": sys.implementation.cache_tag,
    "packages": sysconfig.get_path("purelib"),
}))
"""


class Refused(Exception):
    """What was asked for cannot be done, and why."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks, and answer the exit code."""
    options = _options(arguments)
    try:
        if options.sources is not None:
            print(sources(options.sources))
            return 0
        if options.kept:
            print(kept_wheel(options.venv, options.cache))
            return 0
        wheel = built(options.venv, options.cache, options.jobs)
        print(wheel)
        if not options.no_install:
            python = _python(options.venv)
            _pip(python, "install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))
            _pip(python, "install", "--quiet", *_RUNTIME)
    except Refused as error:
        print(f"deploy/horovod/build: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"deploy/horovod/build: {error.cmd[:4]} … failed: see above", file=sys.stderr)
        return 1
    return 0


def kept_wheel(venv: Path, cache: Path) -> Path:
    """Answer the wheel that is kept for a virtual environment's torch; build nothing.

    Raises:
        Refused: there is none.
    """
    found = _environment(venv)
    kept = cache / key(found["torch"], found["python"])
    if wheels := sorted(kept.glob("*.whl")):
        return wheels[0]
    raise Refused(f"no wheel is kept in {kept}; deploy/horovod/build {venv} builds it")


def built(venv: Path, cache: Path, jobs: int) -> Path:
    """Answer the wheel for a virtual environment's torch: a kept one, or one built now.

    Raises:
        Refused: it has no torch, or the machine no compiler.
    """
    found = _environment(venv)
    kept = cache / key(found["torch"], found["python"])
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if wheels := sorted(kept.glob("*.whl")):
            return wheels[0]
        if shutil.which("make") is None or not (shutil.which("c++") or os.environ.get("CXX")):
            raise Refused("it needs make and a C++ compiler: apt-get install g++ make")
        with tempfile.TemporaryDirectory(prefix="horovod-") as room:
            if not _PLAIN.fullmatch(room):
                raise Refused(
                    f"{room}: its CMake files want plain paths; set TMPDIR to such a one"
                )
            wheel = _build(_python(venv), Path(room), Path(found["packages"]), jobs)
            _check(wheel)
            draft = Path(shutil.copy(wheel, kept / "wheel.new"))
            return draft.rename(kept / wheel.name)


def _check(wheel: Path) -> None:
    """Make sure that the library is where torch's part of Horovod looks for it."""
    with zipfile.ZipFile(wheel) as files:
        if not any(name.startswith("horovod/torch/mpi_lib_v2") for name in files.namelist()):
            raise Refused("the build made no library for torch; what it said is above")


def key(torch: str, python: str) -> str:
    """Name the folder of the wheels that fit one Python, one torch and one machine."""
    operations = os.environ.get("HOROVOD_GPU_OPERATIONS", "gloo").lower()
    release = f"{VERSION}-{REVISION}"
    parts = ("horovod", release, "torch", torch, python, platform.machine(), operations)
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))


def sources(folder: Path) -> Path:
    """Fetch the sdist, unpack it below a folder, patch it, and answer the sources' folder."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{DIGEST}\n")
    _pip(
        Path(sys.executable),
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--require-hashes",
        "--requirement",
        str(wanted),
        "--dest",
        str(folder),
    )
    with tarfile.open(folder / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    source = folder / f"horovod-{VERSION}"
    patch(source)
    return source


def patch(source: Path) -> list[Path]:
    """Change what stands in the way, and answer the files changed: none the second time.

    Raises:
        Refused: a file does not say once what that release's does.
    """
    changed = []
    for name, (found, wanted) in _PATCHES.items():
        file = source / name
        text = file.read_text(encoding="utf-8")
        if text.count(wanted) == 1 and found not in text:
            continue
        if text.count(found) != 1:
            raise Refused(
                f"{file} does not say `{found}` once: these are not Horovod {VERSION}'s sources"
            )
        file.write_text(text.replace(found, wanted), encoding="utf-8")
        changed.append(file)
    return changed


def _build(python: Path, room: Path, packages: Path, jobs: int) -> Path:
    tools = room / "tools"
    subprocess.run([python, "-m", "venv", tools], check=True)
    tool = tools / "bin" / "python"
    _pip(tool, "install", "--quiet", *_BUILD_TOOLS, *_RUNTIME)
    inside = next((tools / "lib").glob("python*/site-packages"))
    (inside / "torch_of_the_environment.pth").write_text(f"{packages}\n")
    source = sources(room / "source")
    environment = {
        **_SWITCHES,
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "HOROVOD_CMAKE": str(tools / "bin" / "cmake"),
        "MAKEFLAGS": f"-j{jobs}",
        "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    subprocess.run(
        [
            tool,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-cache-dir",
            "--verbose",
            "--wheel-dir",
            room / "wheel",
            source,
        ],
        check=True,
        env=environment,
        stdout=sys.stderr,
    )
    return next((room / "wheel").glob("horovod-*.whl"))


def _environment(venv: Path) -> dict[str, str]:
    python = _python(venv)
    if not python.exists():
        raise Refused(f"{venv} is no virtual environment: it has no bin/python")
    asked = subprocess.run([python, "-I", "-c", _ASK], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(asked.stdout.splitlines()[-1])
    if not found["torch"]:
        raise Refused(f"{venv} has no torch: install it first, Horovod is built against it")
    return found


def _python(venv: Path) -> Path:
    return venv.absolute() / "bin" / "python"


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *arguments],
        check=True,
        stdout=sys.stderr,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        prog="deploy/horovod/build",
        description="Build Horovod for a virtual environment's torch, keep it, install it there.",
    )
    parser.add_argument("venv", nargs="?", type=Path, help="the virtual environment, with torch")
    parser.add_argument(
        "--cache", type=Path, default=home / "rung" / "horovod", help="where wheels are kept"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time"
    )
    parser.add_argument("--kept", action="store_true", help="only say which wheel is kept")
    parser.add_argument("--no-install", action="store_true", help="build and keep it only")
    parser.add_argument(
        "--sources", type=Path, metavar="FOLDER", help="fetch and patch the sources there only"
    )
    options = parser.parse_args(arguments)
    if options.venv is None and options.sources is None:
        parser.error("name the virtual environment: deploy/horovod/build .venv")
    return options


if __name__ == "__main__":
    sys.exit(main())
