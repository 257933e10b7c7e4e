"""`rung.tune` as its users call it: in a script, in a notebook, against a server far away."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from rung.cli.local.data_folder import holder_of, is_running, read_server
from rung.client import Client
from rung.events import RungError
from support.installation import Installation
from support.user import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PLAIN = """
import json, rung
CENTER = 3

def train(params):
    return (params["x"] - CENTER) ** 2

result = rung.tune(train, {"x": rung.uniform(-5, 5)}, trials=6, seed=1)
result.plot().save("plot.svg")
print(json.dumps([
    result.experiment.id, result.best.params, result.best.value, len(result.trials),
    list(result.trials)
]))
"""

SLOW = """
import json, time
from pathlib import Path
import rung

def train(params, run):
    total = 0.0
    if run.resumed:
        total = json.loads((run.resumed / "total.json").read_text())
    for step in run:
        time.sleep(0.1)
        total += params["x"]
        run.report(loss=-total, done=step)
        with run.checkpoint() as folder:
            (folder / "total.json").write_text(json.dumps(total))

result = rung.tune(train, {"x": [1, 2]}, length=60, method="grid")
print(json.dumps([result.experiment.id, result.best.value]))
"""


class Script:
    """A user's script in a folder of its own, with a data folder."""

    def __init__(self, folder: Path, text: str, **environment: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "search.py").write_text(text)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RUNG_")}
        self._environment = {**inherited, "NO_COLOR": "1", **environment}

    def start(self) -> subprocess.Popen[bytes]:
        """Start it."""
        with (self.folder / "stdout").open("w") as out, (self.folder / "stderr").open("w") as err:
            return subprocess.Popen(
                [sys.executable, "search.py"],
                cwd=self.folder,
                env=self._environment,
                stdout=out,
                stderr=err,
            )

    @property
    def said(self) -> str:
        """What it wrote to stderr so far."""
        return (self.folder / "stderr").read_text()

    def ended(self, process: subprocess.Popen[bytes]) -> Any:
        """Wait until it ended well and return the JSON that it printed, a value for each line."""
        assert process.wait(timeout=240) == 0, self.said
        return [json.loads(line) for line in (self.folder / "stdout").read_text().splitlines()]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Give an installation that runs, for all tests that leave it alone."""
    item = Installation(tmp_path_factory.mktemp("running") / "data")
    item.up()
    yield item
    item.down()


def _experiment(script: Script) -> str | None:
    """Return the experiment of a script, None before its search has begun."""
    found = re.search("rung: experiment ([a-z0-9]+);", script.said)
    return found[1] if found else None


def _trains(installation: Installation, script: Script) -> bool:
    """Return whether the experiment of a script has some validations."""
    experiment = _experiment(script)
    try:
        return experiment is not None and installation.validations(experiment) > 3
    except (OSError, ValueError, RungError):
        return False


@contextlib.contextmanager
def stopped_at_the_end(data: Path) -> Iterator[None]:
    """Stop whatever runs on a data folder after the body."""
    try:
        yield
    finally:
        if (pid := holder_of(data)) is not None:
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not is_running(data), "the folder is free")


def test_a_script_where_nothing_runs(tmp_path: Path) -> None:
    """It starts Rung, searches, returns the best, and leaves nothing running but the record."""
    data = tmp_path / "data"
    with stopped_at_the_end(data):
        script = Script(tmp_path / "user", PLAIN, RUNG_DATA=str(data))
        ((experiment, params, value, trials, columns),) = script.ended(script.start())
        assert not is_running(data)
        assert value == (params["x"] - 3) ** 2
        assert trials == 6
        assert columns[:4] == ["trial", "state", "loss", "steps"]
        assert (script.folder / "plot.svg").read_text().startswith("<svg")
        assert "its page: http://127.0.0.1:" in script.said
        installation = Installation(data)
        installation.up()
        shown = installation.get(f"/experiments/{experiment}")
        assert (shown["state"], shown["name"], len(shown["trials"])) == ("completed", "train", 6)
        installation.down()


def test_a_function_that_reports_is_promoted_and_resumed(
    running: Installation, tmp_path: Path
) -> None:
    """By ASHA with promotions each run goes on where the last one's checkpoint was."""
    method = '{"name": "asha", "stop_once": False, "divisor": 2, "num_rungs": 3}'
    text = SLOW.replace('method="grid"', f"method={method}, trials=8, seed=1")
    text = text.replace("time.sleep(0.1)", "pass").replace("length=60", "length=8")
    text += 'print((result.best.download("best") / "total.json").read_text())\n'
    script = Script(tmp_path / "user", text, RUNG_DATA=str(running.folder))
    (experiment, value), total = script.ended(script.start())
    assert value == -16.0
    assert total == 16.0
    with Client(data=running.folder) as client:
        trials = client.trials(experiment)
    assert max(trial.run for trial in trials) == 3
    for trial in trials:
        assert [at.metrics["done"] for at in trial.validations] == [
            float(step) for step in range(len(trial.validations))
        ]


def test_a_search_on_a_server_far_away(running: Installation, tmp_path: Path) -> None:
    """By URL and token alone; the data folder of this machine is not touched."""
    url, token = running.server
    here = tmp_path / "not-here"
    environment = {"RUNG_URL": url, "RUNG_TOKEN": token, "RUNG_DATA": str(here)}
    script = Script(tmp_path / "user", PLAIN, **environment)
    ((experiment, *_),) = script.ended(script.start())
    assert not here.exists()
    assert running.get(f"/experiments/{experiment}")["state"] == "completed"


def test_a_killed_script_leaves_the_search_of_a_running_rung(
    running: Installation, tmp_path: Path
) -> None:
    """The search is the server's: it goes on, and another script finds it."""
    text = SLOW.replace("length=60", "length=20")
    script = Script(tmp_path / "user", text, RUNG_DATA=str(running.folder))
    process = script.start()
    wait_for(lambda: _trains(running, script), "it trains")
    process.kill()
    process.wait()
    with Client(data=running.folder) as client:
        handle = client.handle(str(_experiment(script))).wait(timeout=200)
        assert handle.state == "completed"
        assert handle.best().value == -40.0


def test_a_killed_script_takes_its_own_rung_along(tmp_path: Path) -> None:
    """Nothing is left running; the next start of Rung resumes the search from its checkpoints."""
    data = tmp_path / "data"
    with stopped_at_the_end(data):
        text = SLOW.replace("length=60", "length=30")
        script = Script(tmp_path / "user", text, RUNG_DATA=str(data))
        process = script.start()
        installation = Installation(data)
        wait_for(lambda: _trains(installation, script), "it trains")
        everything = psutil.Process(read_server(data).pid).children(recursive=True)
        process.kill()
        process.wait()
        wait_for(lambda: not is_running(data), "Rung stopped with the script")
        _, alive = psutil.wait_procs(everything, timeout=30)
        assert not alive
        installation.up()
        (item,) = installation.get("/experiments")["items"]
        ended = installation.ended(item["id"])
        assert ended["state"] == "completed"
        assert ended["best"]["value"] == -60.0
        assert all(trial["run"] == 2 for trial in ended["trials"])
        installation.down()


def test_a_killed_rung_of_its_own_is_started_again(tmp_path: Path) -> None:
    """The script does not notice but for a message: the search goes on to its result."""
    data = tmp_path / "data"
    with stopped_at_the_end(data):
        script = Script(tmp_path / "user", SLOW, RUNG_DATA=str(data))
        process = script.start()
        installation = Installation(data)
        wait_for(lambda: _trains(installation, script), "it trains")
        installation.kill_server()
        ((_, value),) = script.ended(process)
        assert value == -120.0
        assert script.said.count("started Rung on") == 2
        assert not is_running(data)


def test_two_scripts_at_once(tmp_path: Path) -> None:
    """One starts Rung and the other uses it; when the first one ends, the other one starts it."""
    data = tmp_path / "data"
    gate = tmp_path / "gate"
    wait = f"while not Path({str(gate)!r}).exists(): time.sleep(0.05)"
    gated = SLOW.replace("time.sleep(0.1)", wait)
    with stopped_at_the_end(data):
        short = Script(
            tmp_path / "short", gated.replace("length=60", "length=5"), RUNG_DATA=str(data)
        )
        long = Script(
            tmp_path / "long", SLOW.replace("length=60", "length=150"), RUNG_DATA=str(data)
        )
        first = short.start()
        wait_for(lambda: _experiment(short), "the first one started Rung, and searches")
        second = long.start()
        wait_for(lambda: _experiment(long), "the second one searches there")
        assert "started Rung on" in short.said
        assert "started Rung on" not in long.said
        gate.touch()
        ((_, value),) = short.ended(first)
        assert value == -10.0
        ((_, value),) = long.ended(second)
        assert value == -300.0
        assert "started Rung on" in long.said
        assert not is_running(data)


def test_an_interrupt_pauses_the_search(running: Installation, tmp_path: Path) -> None:
    """Nothing trains any more, nothing is lost, and the message says how it goes on."""
    script = Script(tmp_path / "user", SLOW, RUNG_DATA=str(running.folder))
    process = script.start()
    wait_for(lambda: _trains(running, script), "it trains")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=200)
    assert process.returncode == -signal.SIGINT
    with Client(data=running.folder) as client:
        handle = client.handle(str(_experiment(script)))
        assert handle.state == "paused"
        assert f"`rung resume {handle.id}` continues it" in script.said
        wait_for(lambda: not running.trials(), "nothing trains")
        handle.resume()
        handle.wait(timeout=200)
        assert handle.best().value == -120.0


BAD = """
import rung

def train(params):
    {body}

rung.tune(train, {{"x": rung.uniform(0, 1)}}, trials=8, quiet=True)
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "return 1 / (params['x'] - params['x'])",
            ["line 5, in train", "return 1 / (params", "ZeroDivisionError: float division"],
        ),
        ("open('data.csv')", ["FileNotFoundError", "`rung.tune(…, code=FOLDER)`"]),
        ("pass", ["train: the function returned nothing and reported nothing: return 'loss'"]),
        ("return 'good'", ["metric 'loss'", "str"]),
        ("import no_such_module", ["ModuleNotFoundError: No module named 'no_such_module'"]),
        ("raise SystemExit('no')", ["no (exit code 1)"]),
    ],
)  # fmt: skip
def test_a_function_that_fails_is_explained(
    running: Installation, tmp_path: Path, body: str, says: list[str]
) -> None:
    """The script ends with the function's own traceback, and the search does not run on."""
    text = BAD.format(body=body)
    script = Script(tmp_path / "user", text, RUNG_DATA=str(running.folder))
    process = script.start()
    assert process.wait(timeout=240) == 1
    assert "ExperimentFailed" in script.said
    assert all(part in script.said for part in says), script.said
    assert "rung/function" not in script.said
    experiment = running.get("/experiments?limit=1")["items"][0]
    assert experiment["state"] in {"errored", "canceled"}


def test_a_notebook(tmp_path: Path) -> None:
    """The function is a cell's; the result, its table and its plot are shown."""
    data = tmp_path / "data"
    code = [
        f"import os\nos.environ['RUNG_DATA'] = {str(data)!r}\nimport rung",
        "def train(params):\n    return abs(params['x'] - 1)",
        "result = rung.tune(train, {'x': rung.uniform(0, 2)}, trials=4)",
        "result.trials",
        "result.plot()",
        "result",
        "rung.tune(lambda params: 1 / 0, {'x': [1, 2]}, trials=2)",
    ]
    cells = [nbformat.v4.new_code_cell(text) for text in code]  # type: ignore[no-untyped-call]
    book = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    with stopped_at_the_end(data):
        NotebookClient(book, timeout=240, allow_errors=True, kernel_name="python3").execute()
        wait_for(lambda: not is_running(data), "Rung stopped with the kernel")
    *good, failing = [cell.outputs for cell in book.cells]
    assert not [output for outputs in good for output in outputs if output.output_type == "error"]
    shown = [output.data for outputs in good for output in outputs if "data" in output]
    progress, table, plot, result = shown
    assert "completed" in progress["text/html"]
    assert "params.x" in table["text/html"]
    assert plot["image/svg+xml"].startswith("<svg")
    assert "completed" in result["text/html"]
    (error,) = [output for output in failing if output.output_type == "error"]
    assert "rung.tune(lambda params: 1 / 0" in error.evalue
    assert "ZeroDivisionError" in error.evalue
