"""The command line on a real `rung up`: one search, looked at from every side."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.conftest import Rung
from rung.checkpoint_gc.service import components as checkpoint_gc
from rung.cli.local.data_folder import read_server
from rung.cli.operations.components import CONSUMERS, READERS, RELAYS
from rung.ledger import Draft, SqliteLedger
from rung.runtime.relay import Relay
from rung.runtime.sink.sink import Sink
from rung.scheduler.service import components as scheduler
from rung.searcher.service import components as searcher
from rung.storage import FolderStore
from rung.webhooks.service import components as webhooks
from support.installation import Installation
from support.user import CURVE, wait_for

pytestmark = pytest.mark.processes

CONFIG: dict[str, Any] = {
    "name": "[red]curve",
    "entrypoint": "python3 train.py",
    "hyperparameters": {
        "limit": {"type": "double", "minval": 0, "maxval": 1},
        "opt": {"lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1}},
        "pause_s": 0.01,
    },
    "searcher": {
        "name": "asha",
        "metric": "loss",
        "num_rungs": 2,
        "max_trials": 5,
        "max_time": 8,
        "time_metric": "batches",
    },
    "slurm": {"gpu_type": "x"},
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Return a `rung up` for all tests of this module."""
    item = Installation(tmp_path_factory.mktemp("real") / "data")
    item.up()
    yield item
    item.down()


@pytest.fixture(scope="module")
def experiment(installation: Installation) -> str:
    """Return the id of an experiment that was submitted and followed to its end."""
    code = Path(shutil.copytree(CURVE, installation.folder.parent / "code"))
    (code / "begin.py").write_text("print('begins to train')\nimport train\n")
    file = installation.folder / "curve.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"entrypoint": "python3 begin.py"}))
    result = installation.rung("submit", str(file), str(code), "-f", "--json")
    submitted, ended = map(json.loads, result.stdout.splitlines())
    assert ended["state"] == "completed"
    assert "slurm" in submitted["warnings"][0]
    found: str = submitted["experiment_id"]
    return found


@pytest.fixture(autouse=True)
def _data(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_DATA", str(installation.folder))
    monkeypatch.delenv("RUNG_URL", raising=False)
    monkeypatch.delenv("RUNG_TOKEN", raising=False)


def test_it_is_shown(experiment: str, rung: Rung) -> None:
    """The experiment is listed, shown by the beginning of its id, and has a best trial."""
    assert experiment in rung("list", "--state", "completed").out
    shown = rung("show", experiment[:5], "--json").json
    assert len(shown["trials"]) == 5
    assert {"hparams", "state", "validations"} <= set(shown["trials"][0])
    assert shown["checkpoints"]
    assert "[red]curve" in rung("show", experiment).out
    best = rung("best", experiment, "--json").json
    assert best["value"] == min(trial["best"]["value"] for trial in shown["trials"])
    assert rung("wait", experiment).code == 0


def test_its_checkpoint_is_fetched(experiment: str, rung: Rung, tmp_path: Path) -> None:
    """The best checkpoint's files arrive, verified, also by way of a trial or its own id."""
    best = rung("best", experiment, "--json").json["checkpoint"]
    for number, name in enumerate((experiment, best["trial_id"], best["id"])):
        folder = tmp_path / str(number)
        assert rung("download", name, "-o", str(folder)).code == 0
        assert json.loads((folder / "state.json").read_text())[0] == best["steps_completed"]


def test_it_is_audited(
    experiment: str, rung: Rung, installation: Installation, tmp_path: Path
) -> None:
    """Nothing differs: in the data folder, at the server, whole, exported, and imported."""
    url = read_server(installation.folder).url
    export = tmp_path / "x.jsonl"
    assert rung("ledger", "export", experiment[:6], "-o", str(export)).code == 0
    other = str(tmp_path / "other")
    assert rung("ledger", "import", str(export), "--data", other).code == 0
    assert rung("ledger", "import", str(export), "--data", other).code == 6
    for arguments in (
        ["audit", experiment],
        ["audit"],
        ["audit", experiment, "--url", url],
        ["audit", "--ledger", str(export)],
        ["audit", experiment, "--ledger", str(installation.folder)],
        ["audit", experiment, "--data", other],
    ):
        result = rung(*arguments)
        assert (result.code, result.err) == (0, "")
        assert "decisions are the same" in result.out
    verdict = rung("audit", "--ledger", str(export), "--json").json
    assert verdict["same"]
    assert [item["process"] for item in verdict["verdicts"]] == [
        "directory",
        "searcher",
        "scheduler",
        "checkpoint-gc",
    ]
    assert rung("audit", "nope").code == 4


def test_an_altered_decision_is_found(experiment: str, rung: Rung, tmp_path: Path) -> None:
    """A hyperparameter changed in one decision on record is named; exit code 1."""
    export = tmp_path / "x.jsonl"
    rung("ledger", "export", experiment, "-o", str(export))
    lines = export.read_text().splitlines()
    [index] = [
        number
        for number, line in enumerate(lines)
        if json.loads(line).get("event", {}).get("type") == "rung.trial.requested.v1"
        and json.loads(line)["event"]["data"]["index"] == 3
    ]
    line = json.loads(lines[index])
    line["event"]["data"]["hparams"]["opt"]["lr"] = 0.5
    lines[index] = json.dumps(line)
    export.write_text("\n".join(lines))
    result = rung("audit", "--ledger", str(export))
    assert result.code == 1
    assert "hparams.opt.lr is 0.5 on record" in result.out
    assert f"searcher differs: {experiment}" in result.out
    verdict = rung("audit", "--ledger", str(export), "--json").json
    [difference] = verdict["differences"]
    assert (difference["process"], difference["key"]) == ("searcher", experiment)
    assert difference["recorded"]["data"]["hparams"]["opt"]["lr"] == 0.5
    assert difference["decided"]["data"]["hparams"]["opt"]["lr"] != 0.5
    assert [item["differences"] for item in verdict["verdicts"]] == [0, 1, 0, 0]


def test_the_ledger_is_read(experiment: str, rung: Rung) -> None:
    """Its events are summarized, shown in order, and followed."""
    summary = rung("ledger", "show", "--json").json
    assert experiment in summary["experiments"]
    lines = rung("ledger", "show", experiment, "--topic", "searches", "--json").out.splitlines()
    events = [json.loads(line) for line in lines]
    assert events[0]["type"] == "rung.search.planned.v1"
    assert all(event["causeindex"] is not None for event in events)
    chosen = ("--topic", "experiments", "--all", "--limit", "3")
    result = rung("ledger", "tail", experiment[:6], *chosen)
    assert result.code == 0
    assert "rung.experiment.submitted.v1" in result.out
    assert "experiments" in rung("ledger", "show").out
    assert rung("ledger", "show", "--data", "/nonexistent").code == 6
    named = rung("ledger", "show", rung("show", experiment, "--json").json["name"], "--json")
    assert experiment in named.out.splitlines()[0]
    assert "did you mean" in rung("ledger", "show", f"x{experiment}").err
    assert rung("ledger", "show", "--url", "http://127.0.0.1:9").code == 2


def test_what_trials_printed_is_there(
    experiment: str, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs can be read and followed; an experiment that ended ends the following."""
    monkeypatch.setattr("rung.cli.commands.logs._LOOK_S", 0.2)
    wait_for(
        lambda: "begins to train" in rung("logs", experiment, "--json").out,
        "what was printed is stored",
    )
    for arguments in (["logs", experiment], ["logs", experiment, "-f"]):
        result = rung(*arguments)
        assert result.code == 0
        assert "begins to train" in result.out


def test_what_cannot_be_read_is_a_dead_letter(
    experiment: str, installation: Installation, rung: Rung
) -> None:
    """A broken record in the running ledger is named by the status, and `rung ledger` shows it."""

    async def spoil() -> None:
        ledger = await SqliteLedger.open(installation.folder / "ledger", create=False)
        await ledger.append([Draft("logs", f"{experiment}.0", b"{no event")])
        await ledger.close()

    asyncio.run(spoil())
    readers = ["metrics", "webhooks-logs"]
    wait_for(lambda: rung("status", "--json").json["dead_letters"] == 2, "both letters are told")
    letters = rung("status", "--json").json["letters"]
    assert sorted(letter["reader"] for letter in letters) == readers
    for letter in letters:
        assert (letter["topic"], letter["key"]) == ("logs", f"{experiment}.0")
        assert letter["value"] == "{no event"
    assert "not an event" in rung("status").out
    for chosen in ([], [experiment]):
        shown = rung("ledger", "show", *chosen, "--topic", "deadletter", "--json").out
        events = [json.loads(line) for line in shown.splitlines()]
        assert sorted(event["data"]["reader"] for event in events) == readers
    assert rung("ledger", "show", "--topic", "heartbeats").out
    lines = rung("ledger", "show", "--topic", "logs", "--json").out.splitlines()
    assert "{no event" in [json.loads(line).get("value") for line in lines]
    assert rung("audit").code == 0


def test_a_poisoned_message_is_dropped(
    experiment: str, installation: Installation, rung: Rung, tmp_path: Path
) -> None:
    """Its experiment stands still until an operator drops it; then it goes on, and audits hold."""
    endless = CONFIG["searcher"] | {"max_time": 1_000_000}
    file = tmp_path / "poisoned.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"name": "poisoned", "searcher": endless}))
    running = rung("submit", str(file), str(CURVE), "--json").json["experiment_id"]

    async def poison() -> None:
        ledger = await SqliteLedger.open(installation.folder / "ledger", create=False)
        await ledger.append([Draft("experiments", running, b"{no event")])
        await ledger.close()

    def letters(*options: str) -> dict[str, dict[str, Any]]:
        """Return what is listed of the experiment, by reader."""
        items = rung("deadletter", "list", "--json", *options).json["items"]
        return {item["reader"]: item for item in items if item["key"] == running}

    asyncio.run(poison())
    readers = {"searcher", "checkpoint-gc", "gateway", "webhooks-experiments"}
    wait_for(lambda: letters().keys() >= readers, "all readers rejected it")
    found = letters()
    shown = rung("deadletter", "show", found["searcher"]["id"]).out
    assert "{no event" in shown
    assert f"{running} stands still: searcher decides nothing more about it" in shown
    assert rung("audit").code == 0

    assert rung("deadletter", "retry", found["searcher"]["id"]).code == 0
    wait_for(
        lambda: letters().get("searcher", found["searcher"])["at"] != found["searcher"]["at"],
        "it was tried again in vain",
    )

    assert rung("cancel", running).code == 0
    for reader in readers:
        assert rung("deadletter", "drop", found[reader]["id"], "--yes").code == 0
    assert rung("wait", running).code == 5
    assert letters() == {}
    assert {letters("--all")[reader]["state"] for reader in readers} == {"dropped"}
    again = rung("deadletter", "retry", found["searcher"]["id"])
    assert again.code == 6
    assert "dropped already" in again.err
    assert rung("audit").code == 0
    assert experiment != running


def test_control_and_status(experiment: str, rung: Rung, tmp_path: Path) -> None:
    """A running search is paused, resumed, and canceled; the status counts it with the others."""
    endless = CONFIG["searcher"] | {"max_time": 1_000_000}
    file = tmp_path / "endless.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"name": "endless", "searcher": endless}))
    running = rung("submit", str(file), str(CURVE), "--json").json["experiment_id"]
    assert rung("pause", running).code == 0
    assert rung("resume", running, "--json").json["requested"] == "resume"
    listed = rung("list", "--json").json["items"]
    assert {experiment, running} <= {item["id"] for item in listed}
    assert sum(rung("status", "--json").json["experiments"].values()) == len(listed)
    assert rung("cancel", running, "--wait").code == 0
    assert rung("wait", running).code == 5
    result = rung("cancel", running)
    assert result.code == 6
    assert "has ended" in result.err


def test_a_pool_is_configured(experiment: str, rung: Rung) -> None:
    """A policy that there is comes on record, one that there is not is refused; audits hold."""
    configured = rung("pool", "configure", "default", "--policy", "priority")
    assert (configured.code, configured.err) == (0, "")
    assert configured.out == "Pool default is configured: policy priority.\n"
    refused = rung("pool", "configure", "default", "--policy", "lottery")
    assert refused.code == 2
    assert "policy: there is no policy 'lottery'; there is priority" in refused.err
    [pool] = rung("status", "--json").json["pools"]
    assert (pool["policy"], pool["options"]) == ("priority", {})
    assert rung("audit").code == 0


def test_an_import_needs_the_ledger_for_itself(rung: Rung, tmp_path: Path) -> None:
    """Into the folder of a running Rung nothing is imported."""
    file = tmp_path / "x.jsonl"
    file.write_text("")
    result = rung("ledger", "import", str(file))
    assert result.code == 6
    assert "rung down" in result.err


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have SIGINT reach what is started here, also where a shell runs the tests in background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_detaches(installation: Installation, rung: Rung, tmp_path: Path) -> None:
    """An interrupted `submit -f` says how to go on; the experiment is not touched."""
    slow = CONFIG | {"hyperparameters": CONFIG["hyperparameters"] | {"pause_s": 60}}
    file = tmp_path / "slow.yaml"
    file.write_text(yaml.safe_dump(slow))
    with subprocess.Popen(
        [sys.executable, "-m", "rung.cli", "submit", str(file), str(CURVE), "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        experiment = process.stdout.readline().split()[-1]
        process.stderr.readline()  # the first line of progress and the warning
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"rung wait {experiment}" in said
    assert "Traceback" not in said
    assert rung("show", experiment, "--json").json["state"] == "active"
    assert rung("kill", experiment, "--wait").code == 0


def test_consumers_are_all_there() -> None:
    """Every relay and sink of the services is kept from acting on what is imported."""
    store = FolderStore(Path("/nowhere"))
    table = (*searcher(), *scheduler(), *checkpoint_gc(store), *webhooks(store))
    found = {(it.name, it.topic) for it in table if isinstance(it, Relay | Sink)}
    assert found == set(CONSUMERS)
    assert {it.name for it in RELAYS} == {it.name for it in table if isinstance(it, Relay)}
    found = {place for place, kind in READERS.items() if kind in {"relay", "sink"}}
    assert found == {*CONSUMERS, ("metrics", "metrics"), ("metrics", "logs")}
    projected = {topic for (name, topic), kind in READERS.items() if kind == "projection"}
    assert projected >= {"experiments", "searches", "retirements", "pools", "placements"}


def test_the_trials_of_a_preview_are_those_of_the_search(
    experiment: str, rung: Rung, tmp_path: Path
) -> None:
    """With the same seed, the first trials have the hyperparameters that the preview showed."""
    shown = rung("show", experiment, "--json").json
    seed = shown["config"]["reproducibility"]["experiment_seed"]
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"reproducibility": {"experiment_seed": seed}}))
    samples = rung("preview", str(file), "--json").json["samples"]
    trials = sorted(shown["trials"], key=lambda trial: trial["index"])
    assert [sample["hyperparameters"] for sample in samples] == [it["hparams"] for it in trials]
    text = rung("preview", str(file)).out
    assert f"{samples[4]['hyperparameters']['opt']['lr']:.4g}" in text
    assert "Drawn with seed" not in text


def test_a_search_is_previewed(rung: Rung, tmp_path: Path) -> None:
    """What a search would cost is known before it runs."""
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    facts = rung("preview", str(file), "--slots", "2", "--json").json
    assert facts["trials"] == 5
    assert facts["brackets"] == [{"bracket": 0, "lengths": [2, 8], "trials": 5}]
    assert facts["units"] < facts["units_full"] == 40
    assert facts["concurrent"] == 16
    assert "rungs (batches)" in (shown := rung("preview", str(file))).out
    assert "at once      16 at most\n" in shown.out
    assert "made-up metrics: the search itself may stop more trials, or fewer" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "Drawn with seed 0. A search has a seed of its own, unless the file gives" in shown.out
    assert re.search(r"hyperparameter +the same in all trials\n\w+ +\S+\n", shown.out)
    assert shown.err.startswith("Warning: slurm has no effect here")
    unlimited = CONFIG["searcher"] | {"max_concurrent_trials": 0, "divisor": 4}
    file.write_text(yaml.safe_dump(CONFIG | {"searcher": unlimited}))
    assert "at once      4 at most\n" in rung("preview", str(file)).out
    few = {"name": "adaptive_asha", "metric": "loss", "max_time": 32, "max_trials": 12}
    few["time_metric"] = "batches"
    file.write_text(yaml.safe_dump(CONFIG | {"searcher": few}))
    assert " of bracket 1 train in full, whatever their metric" in rung("preview", str(file)).out
    untimed = {"name": "random", "metric": "loss", "max_trials": 3}
    file.write_text(yaml.safe_dump(CONFIG | {"searcher": untimed}))
    assert "training  as long as the script does\n" in (text := rung("preview", str(file)).out)
    assert "takes" not in text
    assert rung("preview", str(file), "--json").json["units"] is None
    file.write_text("name: 5")
    assert rung("preview", str(file)).code == 2
