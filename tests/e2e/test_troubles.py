"""What goes wrong on people's machines: each has a message that a person understands."""

import contextlib
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rung.cli.local.data_folder import is_running
from support.installation import Installation, modes_below
from support.processes import WHO, process_of
from support.user import config, wait_for

SINGLE = {"name": "single", "max_length": {"batches": 2}}


def _constant(name: str, **more: Any) -> dict[str, Any]:
    """Return an experiment of one trial that is not restarted."""
    plain = config(name, SINGLE, max_restarts=0, **more)
    plain["hyperparameters"] = {"limit": 0.5, "pause_s": 0.0}
    return plain


def _script(installation: Installation, name: str, text: str) -> dict[str, Any]:
    """Run a script as a trial, and return the experiment as it ended."""
    code = installation.folder.parent / f"code-{name}"
    code.mkdir()
    (code / "train.py").write_text(text)
    return installation.ended(installation.submit(_constant(name), code), 60)


def _logs(installation: Installation, experiment: str) -> str:
    return installation.rung("logs", experiment).stdout


REPORT = """
from rung import core
with core.init() as context:
    for step in (1, 2):
        context.train.report_validation_metrics(steps_completed=step, metrics={"loss": LOSS})
"""


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_scripts_that_misbehave_end_alone_and_say_why(installation: Installation) -> None:
    """Each fails, or not, with its reason to be read; the next experiment is not concerned."""
    crashed = _script(installation, "import", "import a_module_that_is_not_there\n")
    assert crashed["state"] == "errored"
    assert "a_module_that_is_not_there" in crashed["trials"][0]["reason"]
    assert "Traceback" in _logs(installation, crashed["id"])

    text = _script(installation, "text", REPORT.replace("LOSS", "'good'"))
    assert text["state"] == "errored"
    assert "loss" in text["trials"][0]["reason"]

    nan = _script(installation, "nan", REPORT.replace("LOSS", "float('nan')"))
    assert nan["state"] == "errored"
    assert "NaN at batch 1" in nan["trials"][0]["reason"]
    assert [v["metrics"]["loss"] for v in nan["trials"][0]["validations"]] == ["NaN", "NaN"]

    loud = _script(installation, "loud", "print('x' * 10_000_000)\n" + REPORT.replace("LOSS", "1"))
    assert loud["state"] == "completed"
    assert _logs(installation, loud["id"]).count("x") >= 10_000_000

    mark = installation.folder.parent / "daemon"
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    open({str(mark)!r}, 'w').write({WHO})\n"
        "    time.sleep(600)\n"
    )
    waiting = f"import os.path\nwhile not os.path.exists({str(mark)!r}): pass\n"
    forked = _script(installation, "forks", daemon + waiting + REPORT.replace("LOSS", "1"))
    assert forked["state"] == "completed"
    assert process_of(mark.read_text()) is None

    calm = installation.submit(_constant("calm"))
    assert installation.ended(calm, 60)["state"] == "completed"
    assert installation.rung("audit", check=False).returncode == 0


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_a_script_that_ignores_sigterm_is_killed_all_the_same(installation: Installation) -> None:
    """`rung kill` ends it at once, and its slot is free for the next."""
    code = installation.folder.parent / "stubborn"
    code.mkdir()
    (code / "train.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    experiment = installation.submit(_constant("stubborn"), code)
    wait_for(lambda: "deaf" in _logs(installation, experiment), "the script runs")
    victims = installation.trials()
    installation.rung("kill", experiment)

    assert installation.ended(experiment, 30)["state"] == "canceled"
    _, alive = psutil.wait_procs(victims, timeout=10)
    assert not alive
    calm = installation.submit(_constant("calm"))
    assert installation.ended(calm, 60)["state"] == "completed"


@pytest.mark.e2e
def test_a_second_up_on_the_same_folder_is_refused(installation: Installation) -> None:
    """It says which process holds the folder and what to do; the first goes on."""
    refused = installation.rung("up", "--port", "0", check=False)

    assert refused.returncode == 6
    assert f"process {installation.server_process.pid}" in refused.stderr
    assert "rung down" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert installation.get("/status")


@pytest.mark.e2e
def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """It names the port and the option that chooses another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = Installation(tmp_path / "data").rung("up", "--port", str(port), check=False)

    assert refused.returncode == 6
    assert f"port {port}" in refused.stderr
    assert "--port" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.e2e
def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    """Nothing in it is touched."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "version").write_text("99\n")
    refused = Installation(data).rung("up", "--port", "0", check=False)

    assert refused.returncode == 6
    assert "another Rung" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (data / "ledger").exists()


@pytest.mark.e2e
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The kernel's own folder is one that not even root may write."""
    refused = Installation(tmp_path).rung("up", "--port", "0", "--data", "/proc/rung", check=False)

    assert refused.returncode == 6
    assert "/proc/rung" in refused.stderr
    assert "--data" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_a_truncated_ledger_is_refused(installation: Installation) -> None:
    """It names the file and what can be done, and does not go on as if it were empty."""
    installation.ended(installation.submit(_constant("calm")), 60)
    installation.down()
    for file in (installation.folder / "ledger").glob("ledger.db*"):
        with file.open("r+b") as handle:
            handle.truncate(file.stat().st_size // 2)
    refused = installation.rung("up", "--port", "0", check=False)

    assert refused.returncode == 6
    assert refused.stdout == ""
    assert "ledger.db" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_what_can_be_rebuilt_never_keeps_it_from_training(installation: Installation) -> None:
    """A damaged outbox, damaged series and then a ledger that is gone: set aside, said, rebuilt.

    A detached `rung up` returns once all of it is mended; curves are there as before.
    """
    calm = installation.submit(_constant("calm"))
    assert installation.ended(calm, 60)["state"] == "completed"
    path = f"/experiments/{calm}/metrics?kind=validation&name=loss"
    before = wait_for(lambda: _curves(installation, path), "the curves are there")
    installation.down()
    folder = installation.folder
    (folder / "agent" / "spool.db").write_bytes(b"what is no database" * 1000)
    for file in (folder / "series").rglob("*.sql"):
        file.write_bytes(b"what is no table")
    up = installation.rung("up", "--detach", "--port", "0", "--slots", "2")

    for aside in ("series.damaged-", "agent/spool.db.damaged-"):
        assert f"Warning: {folder}/{aside}" in up.stderr
        assert f"Problem: {folder}/{aside}" in installation.rung("status").stdout
    wait_for(lambda: _curves(installation, path) == before, "the curves are rebuilt")
    again = installation.submit(_constant("again"))
    assert installation.ended(again, 60)["state"] == "completed"
    installation.down()
    shutil.rmtree(folder / "ledger")
    up = installation.rung("up", "--detach", "--port", "0", "--slots", "2")
    assert up.stderr.count("series.damaged-") == 2
    other = installation.submit(_constant("other"))
    assert installation.ended(other, 60)["state"] == "completed"


_DELETE = """
import sys
from chdb.session import Session
Session(sys.argv[1]).query("DELETE FROM metrics WHERE kind = 'validation'")
"""


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_rows_that_the_series_lost_are_said_and_rebuilt(installation: Installation) -> None:
    """They were deleted while nothing ran: the next start finds that, and status names it."""
    calm = installation.submit(_constant("calm"))
    assert installation.ended(calm, 60)["state"] == "completed"
    path = f"/experiments/{calm}/metrics?kind=validation&name=loss"
    before = wait_for(lambda: _curves(installation, path), "the curves are there")
    installation.down()
    series = str(installation.folder / "series")
    subprocess.run([sys.executable, "-c", _DELETE, series], check=True, timeout=60)
    installation.rung("up", "--detach", "--port", "0", "--slots", "2")

    wait_for(lambda: _curves(installation, path) == before, "the curves are rebuilt")
    wait_for(
        lambda: f"Problem: the series in {series} lacked" in installation.rung("status").stdout,
        "status names what was missing",
    )


def _curves(installation: Installation, path: str) -> Any:
    found = installation.get_or_none(path)
    return found and found["curves"]


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_a_detached_one_says_why_it_cannot_stay(installation: Installation) -> None:
    """An agent that is refused: no success is reported before that is known."""
    installation.down()
    with contextlib.closing(sqlite3.connect(installation.folder / "agent" / "spool.db")) as db, db:
        db.execute("UPDATE mark SET value = '99' WHERE name = 'layout'")
    refused = installation.rung("up", "--detach", "--port", "0", "--slots", "2", check=False)

    assert refused.returncode == 6
    assert refused.stdout == ""
    assert "was written by another Rung" in refused.stderr
    assert "agent.log" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not is_running(installation.folder)


PRIVATE = """
import os
from rung import core
open(MARK, "w").close()
with core.init() as context:
    with context.checkpoint.store_path(steps_completed=1) as (path, _):
        (path / "weights").write_text("x")
    context.train.report_validation_metrics(steps_completed=1, metrics={"loss": 1.0})
"""


@pytest.mark.e2e
def test_what_it_writes_is_its_owners_alone(installation: Installation) -> None:
    """All that lies in the data folder; what a script writes elsewhere is as its user wants it."""
    mark = installation.folder.parent / "mark"
    done = _script(installation, "private", PRIVATE.replace("MARK", repr(str(mark))))
    assert done["state"] == "completed"
    assert mark.stat().st_mode & 0o777 == 0o644
    folder = installation.folder
    checkpoints = folder / "objects" / "checkpoints"
    users = (checkpoints, folder / "agent" / "code")  # modes as the user has them, behind Rung's
    (folder / "private.yaml").unlink()  # by this test
    open_to_others = [
        path
        for path, mode in modes_below(folder).items()
        if not any(map(path.is_relative_to, users)) and not stat.S_ISLNK(mode) and mode & 0o077
    ]
    assert open_to_others == []
    assert list(checkpoints.rglob("weights"))
