"""The exit code distinguishes each way of producing nothing from a result; the cause is named."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from rung.client import Client
from rung.config.code_folder import pack
from support.installation import Installation
from support.user import wait_for

ERRORED: Final = 1
CANCELED: Final = 5

RANDOM: Final = {"name": "random", "max_trials": 2, "max_time": 4}
SINGLE: Final = {"name": "single", "max_time": 4}
ASHA: Final = {
    "name": "async_halving",
    "max_trials": 4,
    "max_time": 4,
    "num_rungs": 2,
    "max_concurrent_trials": 1,
}


class Case(NamedTuple):
    """A script, and what must become of it.

    Attributes:
        said: what the sentence of its end says, as a pattern.
        body: of the script, within `with core.init() as ctx`.
        head: of the script, before it.
        ask: what is asked for once it runs.
    """

    said: str
    body: str = "pass"
    head: str = ""
    code: int = ERRORED
    ask: str = ""
    searcher: Mapping[str, Any] = RANDOM
    more: Mapping[str, Any] = {}


def reports(value: str, *, after: str = "") -> str:
    """Return a script that validates to its length and runs something after each report."""
    return f"""
for step in range(1, 5):
    ctx.train.report_validation_metrics(step, {{"loss": {value}}})
    {after or "pass"}
"""


STORE = """
with ctx.checkpoint.store_path({"steps_completed": 4}) as (path, _):
    (path / FILE).write_text("weights")
"""
WHOLE = STORE.replace("FILE", "'weights'")
NO_VALIDATION = r"the script reported no validation, so there is no loss"
WAITS = "import time\nwhile not ctx.preempt.should_preempt(): time.sleep(0.05)"

NOTHING = {
    "it never validates": Case(
        rf"all 2 trials errored: {NO_VALIDATION} \(\w+\.\d\)",
        "for step in range(1, 5): ctx.train.report_training_metrics(step, {'loss': 0.5})",
    ),
    "it stores checkpoints and never validates": Case(f"all 2 .*: {NO_VALIDATION}", WHOLE),
    "it reports another metric": Case(
        "all 2 .*MetricMissing: the validation metrics lack 'loss', .*given: 'accuracy'",
        "ctx.train.report_validation_metrics(1, {'accuracy': 1})",
    ),
    "all values are NaN": Case(
        r"all 2 .*: no value of loss was a finite number: it was NaN at batch 1 \(",
        reports("float('nan')"),
    ),
    "all values are infinite": Case(
        "all 2 .*: no value of loss .* it was Infinity at", reports("float('inf')")
    ),
    "all values are NaN in a search that compares": Case(
        "all 4 .*: no value of loss .* it was NaN at batch 1",
        reports("float('nan')", after="if ctx.preempt.should_preempt(): break"),
        searcher=ASHA,
    ),
    "the searcher's metric alone is NaN": Case(
        "all 2 .*: no value of loss .* it was NaN at",
        "ctx.train.report_validation_metrics(4, {'loss': float('nan'), 'accuracy': 0.5})",
    ),
    "it fails before its first report": Case(
        r"all 2 trials errored: KeyError: 'x' \(exit code 1\) \(\w+\.\d\)", "{}['x']"
    ),
    "it fails after its first report": Case(
        "all 2 .*: RuntimeError: no", reports("0.5", after="raise RuntimeError('no')")
    ),
    "it fails at its second epoch, and a search stops some before": Case(
        r"1 of 4 trials errored: RuntimeError: no .*; 3 stopped",
        f"""
ctx.train.report_validation_metrics(1, {{"loss": float(ctx.info.trial.trial_id.split(".")[1])}})
if ctx.info.trial.trial_id.endswith(".0"):
    raise RuntimeError("no")
{WAITS}
""",
        searcher=ASHA,
        more={"max_restarts": 0},
    ),
    "it is killed by a signal": Case(
        r"all 2 .*: killed by signal 9 \(SIGKILL\)", "os.kill(os.getpid(), 9)", "import os"
    ),
    "it crashes": Case("all 2 .*: .*SIGSEGV", "os.kill(os.getpid(), 11)", "import os"),
    "it exits at once": Case(f"all 2 .*: {NO_VALIDATION}", head="raise SystemExit"),
    "it exits with a code": Case("all 2 .*: .*exit code 3", head="raise SystemExit(3)"),
    "it imports what is not there": Case(
        "all 2 .*: .*the module missing_here is not there", head="import missing_here"
    ),
    "it is no Python": Case("all 2 .*SyntaxError", head="def"),
    "its program is not there": Case(
        "all 2 .*: .*no-such-program", more={"entrypoint": "no-such-program train.py"}
    ),
    "its checkpoints fail": Case(
        "all 2 .*: FileNotFoundError",
        "ctx.train.report_validation_metrics(4, {'loss': 0.5})" + STORE.replace("FILE", "'a/b'"),
    ),
    "it hangs": Case("all 2 .*: .*2 s", "import time\ntime.sleep(600)", more={"hang_timeout": 2}),
    "its parent exits and leaves a child": Case(
        f"all 2 .*: {NO_VALIDATION}",
        head="import os, time\nif os.fork() == 0: time.sleep(600)\nos._exit(0)",
    ),
    "its metrics are text": Case("all 2 .*ReportRefused: .*'loss'", reports("'0.5'")),
    "one of its ranks fails": Case(
        "all 2 .*: rank 1: ValueError: no",
        "if ctx.distributed.rank == 1: raise ValueError('no')\n" + reports("0.5"),
        more={"resources": {"slots_per_trial": 2}},
    ),
    "it refuses all hyperparameters": Case(
        "all 4 .*: the script refused its hyperparameters: too large",
        "raise core.InvalidHP('too large')",
    ),
    "a plain training does nothing": Case(
        f"the only trial errored: {NO_VALIDATION}", searcher=SINGLE
    ),
    "a plain training diverges": Case(
        "the only trial errored: no value of loss .* NaN",
        reports("float('nan')") + WHOLE,
        searcher=SINGLE,
    ),
    "it uses its slot-hours and reports nothing": Case(
        "its limit of 0.001 slot-hours is reached before any trial had a result; 2 trials: 2 s",
        WAITS,
        more={"resources": {"max_slot_hours": 0.001}},
    ),
    "it is canceled": Case("2 trials: 2 canceled", WAITS, code=CANCELED, ask="cancel"),
    "it is killed by its user": Case("2 trials: 2 canceled", WAITS, code=CANCELED, ask="kill"),
}

SOMETHING = {
    "one of four trials is good": Case(
        r"3 of 4 trials errored: ValueError: no \(exit code 1\) \(\w+\.\d\); 1 completed",
        "if not ctx.info.trial.trial_id.endswith('.0'): raise ValueError('no')\n" + reports("0.5"),
        searcher=RANDOM | {"max_trials": 4},
    ),
    "a search stops the worse": Case(
        "4 trials: 1 completed, 3 stopped",
        f"""
worse = float(ctx.info.trial.trial_id.split(".")[1])
for step in range(1, 5):
    ctx.train.report_validation_metrics(step, {{"loss": worse}})
    if worse:
        {textwrap.indent(WAITS, " " * 8).strip()}
        break
""",
        searcher=ASHA,
    ),
    "it ends by itself after a validation": Case(
        "2 trials: 2 completed", "ctx.train.report_validation_metrics(1, {'loss': 0.5})"
    ),
    "it diverges after a good value": Case(
        "2 trials: 2 completed", reports("0.5 if step == 1 else float('nan')")
    ),
    "it fails once and is restarted": Case(
        "1 trial: 1 completed",
        f"""
if ctx.checkpoint.download_latest() is None:
    {textwrap.indent(WHOLE.replace("4", "2"), " " * 4).strip()}
    raise ValueError("once")
{reports("0.5")}
""",
        searcher=SINGLE,
    ),
    "a plain training uses its slot-hours": Case(
        "its limit of 0.001 slot-hours is reached; 1 trial: 1 stopped",
        f"ctx.train.report_validation_metrics(1, {{'loss': 0.5}})\n{WAITS}",
        searcher=SINGLE,
        more={"resources": {"max_slot_hours": 0.001}},
    ),
    "a plain training stores a checkpoint and never validates": Case(
        "1 trial: 1 completed", WHOLE, searcher=SINGLE
    ),
}

CASES: Final = NOTHING | {name: case._replace(code=0) for name, case in SOMETHING.items()}


class Submitted(NamedTuple):
    """The installation, and the experiments of the cases, all submitted at once.

    Those that are to be canceled are not among them: they would hold slots until that.
    """

    installation: Installation
    ids: dict[str, str]

    def submit(self, name: str) -> str:
        """Submit the experiment of a case."""
        case = CASES[name]
        code = _code(self.installation.folder.parent, name, case)
        url, token = self.installation.server
        with Client(url, token) as client:
            return client.submit(yaml.safe_dump(_file(name, case)), pack(code).data).experiment_id

    def asked(self, name: str, what: str) -> str:
        """Submit an experiment, and ask for its end once its trials run."""
        experiment = self.submit(name)

        def running() -> bool:
            trials = self.installation.get(f"/experiments/{experiment}")["trials"]
            return bool(trials) and all(trial["state"] == "running" for trial in trials)

        wait_for(running, "its trials run", 240)
        self.installation.rung(what, experiment)
        return experiment


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitted]:
    """Submit the cases."""
    made = Submitted(
        Installation(tmp_path_factory.mktemp("results") / "data", slots=4, cold=False), {}
    )
    made.installation.up()
    try:
        for name, case in CASES.items():
            if not case.ask:
                made.ids[name] = made.submit(name)
        yield made
    finally:
        made.installation.down()


def _file(name: str, case: Case) -> dict[str, Any]:
    return {
        "name": name,
        "entrypoint": "python3 train.py",
        "hyperparameters": {}
        if case.searcher is SINGLE
        else {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {"metric": "loss", "time_metric": "batches", **case.searcher},
        "max_restarts": 1,
        **case.more,
    }


def _code(folder: Path, name: str, case: Case) -> Path:
    code = folder / re.sub(r"\W", "-", name)
    code.mkdir()
    body = textwrap.indent(case.body, "    ")
    (code / "train.py").write_text(
        f"{case.head}\nfrom rung import core\nwith core.init() as ctx:\n{body}\n"
    )
    return code


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_the_exit_code_says_whether_there_is_a_result(submitted: Submitted, name: str) -> None:
    """State, exit code and sentence of `rung wait`, and a log to read where trials errored."""
    case, rung = CASES[name], submitted.installation.rung
    experiment = submitted.asked(name, case.ask) if case.ask else submitted.ids[name]
    end = rung("wait", experiment, "--quiet", check=False)

    states = {0: "completed", ERRORED: "errored", CANCELED: "canceled"}
    assert end.returncode == case.code, end.stdout
    said = re.fullmatch(rf"\w+ {states[case.code]} after [^:]+: (.*)", end.stdout.splitlines()[0])
    assert said, end.stdout
    assert re.match(case.said, said[1]), said[1]
    shown = submitted.installation.get(f"/experiments/{experiment}")
    if re.search("MetricMissing|SyntaxError", case.said):
        assert {trial["restarts"] for trial in shown["trials"]} == {0}, "it was tried again"
    failures = shown["failures"]
    assert bool(failures) == ("errored" in said[1])
    if failures:
        first = failures[0]["trial_id"]
        which = "it" if shown["trial_count"] == 1 else "the first of them"
        assert f"`rung logs {first}` shows {which}\n" in end.stdout
        logs = submitted.installation.get(failures[0]["logs"].removeprefix("/api/v1"))
        assert {line["trial_id"] for line in logs["items"]} <= {first}


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_what_submits_and_follows_has_the_same_exit_code(submitted: Submitted) -> None:
    """`rung submit -f` of a search that produces nothing, and of one that does."""
    folder = submitted.installation.folder.parent
    for name in ("it exits at once", "it ends by itself after a validation"):
        file = folder / "again.yaml"
        file.write_text(yaml.safe_dump(_file(name, CASES[name])))
        code = folder / re.sub(r"\W", "-", name)
        end = submitted.installation.rung("submit", "-f", str(file), str(code), check=False)
        assert end.returncode == CASES[name].code
        assert re.search(CASES[name].said, end.stdout)
