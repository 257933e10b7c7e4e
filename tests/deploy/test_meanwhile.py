"""`deploy/horovod/meanwhile.py`: a build behind a command that neither slows nor fails it.

What is built here is nothing: beside the script stands one that a build's conduct is written into.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.processes import alive
from support.user import wait_for

pytestmark = pytest.mark.processes

_SCRIPT: Final = Path(__file__).parents[2] / "deploy" / "horovod" / "meanwhile.py"
_HEAD: Final = """
import json, os, pathlib, sys, tempfile
here = pathlib.Path(__file__).parent
if "--kept" in sys.argv: sys.exit(not (here / "kept").exists())
def begin(**more):
    said = {"pid": os.getpid(), "room": tempfile.gettempdir(), **more}
    (here / "draft").write_text(json.dumps(said))
    (here / "draft").rename(here / "begun")
"""
_ENDLESS: Final = """
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(tempfile.mkdtemp(), "object.o").write_text("half")
idle = os.sched_getscheduler(0) == os.SCHED_IDLE
begin(child=child.pid, idle=idle, nice=os.nice(0))
time.sleep(600)
"""
_UNTIL_BEGUN: Final = """
import json, os, select, time
while not os.path.exists("begun"): time.sleep(0.01)
"""
_UNTIL_ENDED: Final = f"""{_UNTIL_BEGUN}
build = os.pidfd_open(json.load(open("begun"))["pid"])
select.select([build], [], [])
"""


class Meanwhile:
    """The script, beside a build of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(_SCRIPT, folder)

    def start(self, build: str, command: str, *, ci: bool = True) -> subprocess.Popen[str]:
        """Start a command of Python, and what is built meanwhile."""
        (self.folder / "horovod_wheel.py").write_text(_HEAD + build)
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        return subprocess.Popen(
            [sys.executable, "meanwhile.py", "venv", sys.executable, "-c", command],
            cwd=self.folder,
            env=environment | ({"CI": "true"} if ci else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, build: str, command: str, *, ci: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run one to its end."""
        with self.start(build, command, ci=ci) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def meanwhile(tmp_path: Path) -> Meanwhile:
    """Give the script in a folder of its own."""
    return Meanwhile(tmp_path)


def test_a_build_that_is_not_ready_is_stopped(meanwhile: Meanwhile) -> None:
    """Whatever it started ends with it, what it wrote is removed, and it ran out of the way."""
    done = meanwhile.run(_ENDLESS, _UNTIL_BEGUN + "raise SystemExit(5)")
    assert done.returncode == 5
    assert "its wheel was not ready after" in done.stdout
    begun = json.loads((meanwhile.folder / "begun").read_text())
    assert (begun["idle"], begun["nice"]) == (True, 19)
    assert not Path(begun["room"]).exists()
    wait_for(lambda: not alive(begun["pid"]), "the build is gone")
    wait_for(lambda: not alive(begun["child"]), "what it started is gone")


@pytest.mark.parametrize("code", [0, 3])
def test_a_build_that_fails_fails_nothing(meanwhile: Meanwhile, code: int) -> None:
    """Its last words are shown; the exit code stays the command's."""
    build = "begin()\nsys.exit('no index, no wheel')"
    done = meanwhile.run(build, _UNTIL_ENDED + f"raise SystemExit({code})")
    assert done.returncode == code
    assert "could not be built:\nno index, no wheel" in done.stdout


def test_what_is_built_is_told(meanwhile: Meanwhile) -> None:
    """A build that comes to its end leaves the command as it is."""
    done = meanwhile.run("begin()", _UNTIL_ENDED)
    assert done.returncode == 0
    assert "was built meanwhile, and is kept" in done.stdout


_TIDY: Final = """
import signal, sys, time
def tidy(*_):
    open("tidied", "w").close()
    sys.exit(7)
signal.signal(signal.SIGTERM, tidy)
open("ready", "w").close()
while True: time.sleep(600)
"""


@pytest.mark.parametrize("ci", [True, False])
def test_a_command_that_is_to_end_may_clear_up(meanwhile: Meanwhile, *, ci: bool) -> None:
    """It gets the signal, its end is waited for, its exit code told; the build ends as ever."""
    with meanwhile.start(_ENDLESS, (_UNTIL_BEGUN if ci else "") + _TIDY, ci=ci) as process:
        wait_for((meanwhile.folder / "ready").exists, "the command has begun")
        process.terminate()
        process.communicate()
    assert process.returncode == 7
    assert (meanwhile.folder / "tidied").exists()
    if ci:
        build = json.loads((meanwhile.folder / "begun").read_text())["pid"]
        wait_for(lambda: not alive(build), "the build is gone")


def test_a_command_that_dies_of_the_signal_is_told_as_a_shell_does(
    meanwhile: Meanwhile,
) -> None:
    """With 128 and the signal's number."""
    command = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)"
    assert meanwhile.run("begin()", command, ci=False).returncode == 143


@pytest.mark.parametrize(("ci", "kept"), [(False, False), (True, True)])
def test_nothing_is_built_unasked(meanwhile: Meanwhile, *, ci: bool, kept: bool) -> None:
    """Neither for a person, nor where a wheel is kept."""
    if kept:
        (meanwhile.folder / "kept").touch()
    done = meanwhile.run("begin()", "raise SystemExit(4)", ci=ci)
    assert (done.returncode, done.stdout) == (4, "")
    assert not (meanwhile.folder / "begun").exists()
