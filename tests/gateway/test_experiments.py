"""Experiments and trials as the API shows them."""

import math
import time
from urllib.parse import quote

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events.allocation import AgentJoined, Slot
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import CancelRequested, ExperimentSubmitted
from rung.events.trial import TrialExited, TrialStarted, TrialValidated
from support.gateway.client import Client
from support.gateway.scenario import EXPERIMENT, History, config, play, stored, submitted


def _history() -> History:
    history = History()
    history.write(submitted(name="random", max_trials=3, num_rungs=None), origin="client/x")
    history.decide()
    return history


def _validated(index: int, epochs: float, error: float | str, run: int = 1) -> TrialValidated:
    metrics = {"error": error, "epochs": epochs}
    return TrialValidated(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.{index}",
        run=run,
        steps_completed=int(epochs * 10),
        metrics=metrics,  # type: ignore[arg-type]
    )


async def test_why_trials_errored_is_grouped(world: World) -> None:
    """By what their causes have in common, the commonest first, with the first trial's log."""
    search = submitted(name="random", max_trials=5, num_rungs=None)
    search.config["max_restarts"] = 0
    history = History()
    history.write(search)
    messages = ("KeyError: 'x'", "OSError: /run/1/a is full", "OSError: /run/2/a is full")
    for index, message in enumerate(messages):
        history.decide()
        history.write(
            TrialExited(
                experiment_id=EXPERIMENT,
                trial_id=f"{EXPERIMENT}.{index}",
                run=1,
                agent_id="a",
                outcome="failed",
                exit_code=1,
                signal=None,
                message=message,
            )
        )
    history.decide()
    await world.play(history)
    async with world.gateway() as client:
        shown = await client.get(f"/experiments/{EXPERIMENT}")
        page = await client.get("/experiments")
        failed = await client.get(f"/trials/{EXPERIMENT}.0")

    assert (failed["state"], failed["restarts"]) == ("errored", 0)
    assert shown["state"] == "active"
    assert shown["failures"] == page["items"][0]["failures"]
    assert shown["failures"] == [
        {
            "cause": message,
            "trials": trials,
            "trial_id": f"{EXPERIMENT}.{index}",
            "logs": f"/api/v1/trials/{EXPERIMENT}.{index}/logs",
        }
        for message, trials, index in [(messages[1], 2, 1), (messages[0], 1, 0)]
    ]


async def test_running_search_is_shown(world: World) -> None:
    """State, progress, trials, best and units follow from what was reported."""
    history = _history()
    trial = f"{EXPERIMENT}.0"
    history.write(TrialStarted(experiment_id=EXPERIMENT, trial_id=trial, run=1, agent_id="a"))
    history.write(_validated(0, 3, 0.5))
    history.write(_validated(0, 6, 0.25))
    history.write(_validated(0, 7, "NaN"))
    history.decide()
    await world.play(history)
    async with world.gateway() as client:
        shown = await client.get(f"/experiments/{EXPERIMENT}")

    assert (shown["state"], shown["method"], shown["trial_count"]) == ("active", "random", 3)
    assert (shown["units_trained"], shown["units_full"]) == (7, 27)
    assert shown["progress"] == pytest.approx(7 / 27)
    assert shown["best"] == {
        "trial_id": trial,
        "metric": "error",
        "value": 0.25,
        "steps": 60,
    }
    assert [it["state"] for it in shown["trials"]] == ["running", "waiting", "waiting"]
    first = shown["trials"][0]
    assert [it["steps"] for it in first["validations"]] == [30, 60, 70]
    assert first["validations"][2]["metrics"] == {"error": "NaN", "epochs": 7}
    assert (first["rung"], first["length"], first["units"]) == (None, 9, 7)
    assert shown["labels"] == ["small", "test"]
    assert shown["plan"]["time_metric"] == "epochs"


@pytest.mark.parametrize(("slots", "left"), [(0, None), (1, 0.1 + 1 + 4 + 4), (3, 4.0)])
async def test_time_left(world: World, slots: int, left: float | None) -> None:
    """It follows from what the runs have taken so far, and from the slots that there are.

    The first trial started a second after the request and trained three units in a second; it is
    overdue, as its reports are of January.
    """
    history = _history()
    trial = f"{EXPERIMENT}.0"
    history.write(TrialStarted(experiment_id=EXPERIMENT, trial_id=trial, run=1, agent_id="a"))
    history.write(_validated(0, 3, 0.5))
    history.write(_validated(0, 6, 0.4))
    history.decide()
    await world.play(history)
    there = [Slot(id=number, kind="cpu", name="CPU") for number in range(slots)]
    await world.write(
        AgentJoined(pool="default", agent_id="a", incarnation=1, hostname="a", slots=there)
    )
    async with world.gateway() as client:
        began = time.time()
        shown = await client.get(f"/experiments/{EXPERIMENT}")
        listed = await client.get("/experiments")
        took = time.time() - began

    again = listed["items"][0]["eta_seconds"]
    if left is None:
        assert (shown["eta_seconds"], again) == (None, None)
    else:  # a forecast that is held is shortened by the time that has passed, and by no more
        assert shown["eta_seconds"] == pytest.approx(left)
        assert shown["eta_seconds"] - took <= again <= shown["eta_seconds"]


async def test_no_time_is_left_at_the_end(world: World) -> None:
    """A search that has ended has nothing to wait for."""
    ended = play(1)
    assert ended.searcher.state(EXPERIMENT) is None
    await world.play(ended)
    async with world.gateway() as client:
        shown = await client.get(f"/experiments/{EXPERIMENT}")

    assert (shown["state"], shown["eta_seconds"]) == ("completed", None)


async def test_a_failure_after_the_length_is_shown(world: World) -> None:
    """A trial that was trained and stored, and whose script failed then, says both."""
    history = _history()
    trial = f"{EXPERIMENT}.0"
    length = history.running[trial].length
    assert length is not None
    history.write(_validated(0, length, 0.5))
    history.write(stored(trial, 1, length * 10, 1))
    history.write(
        TrialExited(
            experiment_id=EXPERIMENT,
            trial_id=trial,
            run=1,
            agent_id="a",
            outcome="failed",
            exit_code=1,
            signal=None,
            message="ValueError: no export (exit code 1)",
        )
    )
    history.decide()
    await world.play(history)
    async with world.gateway() as client:
        shown = await client.get(f"/trials/{trial}")
        experiment = await client.get(f"/experiments/{EXPERIMENT}")
        (listed,) = [it for it in experiment["trials"] if it["id"] == trial]

    (late,) = experiment["late_failures"]
    assert (late["cause"], late["trials"], late["trial_id"]) == (
        "ValueError: no export (exit code 1)",
        1,
        trial,
    )
    assert experiment["failures"] == []
    failed = "its script failed after that: ValueError: no export (exit code 1)"
    assert shown["state"] == "completed"
    assert shown["reason"] == listed["reason"] == f"trained to {length}; {failed}"


async def test_repeated_and_stale_reports_count_once(world: World) -> None:
    """What a restarted run reports again is dropped, and so is what an ended run says."""
    history = _history()
    trial = f"{EXPERIMENT}.0"
    history.write(_validated(0, 3, 0.5))
    history.write(
        TrialExited(
            experiment_id=EXPERIMENT,
            trial_id=trial,
            run=1,
            agent_id="a",
            outcome="failed",
            exit_code=1,
            signal=None,
            message="ValueError: no",
        )
    )
    history.decide()
    history.write(_validated(0, 5, 0.1, run=1))
    history.write(_validated(0, 3, 0.5, run=2))
    history.write(_validated(0, 4, 0.4, run=2))
    history.decide()
    await world.play(history)
    async with world.gateway() as client:
        shown = await client.get(f"/trials/{trial}")

    assert [it["metrics"]["error"] for it in shown["validations"]] == [0.5, 0.4]
    assert (shown["run"], shown["restarts"]) == (2, 1)
    assert shown["message"] == "ValueError: no"
    assert shown["best"] == {"value": 0.4, "steps": 40}


async def test_secrets_are_neither_shown_nor_on_record(world: World, client: Client) -> None:
    """Neither the configuration nor the file has them; what refers to them is not shown."""
    plain = (await client.submit(EXPERIMENT_FILE)).json
    plain_warnings = plain["warnings"]
    answer = await client.submit(EXPERIMENT_FILE + "data: {n: 1, secrets: {token: hush}}\n")
    shown = await client.call("GET", answer.json["url"].removeprefix("/api/v1"))
    again = await client.submit(shown.json["source"])
    facts = await world.all("experiments")

    assert b"hush" not in shown.body
    assert shown.json["config"]["data"] == {"n": 1, "secrets": {"token": "********"}}
    assert shown.json["config"]["internal"] is None
    assert answer.json["warnings"] == plain_warnings
    assert (again.status, again.json["errors"][0]["path"]) == (422, "data.secrets.token")
    assert "hush" not in str(facts)
    assert (await client.get(f"/experiments/{plain['experiment_id']}"))[
        "source"
    ] == EXPERIMENT_FILE


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["async_halving", "hyperband", "random"])
async def test_ended_search_is_shown(world: World, name: str, seed: int) -> None:
    """An ended search is at 1, names its best trial, and its trials are closed."""
    await world.play(play(seed, name=name))
    async with world.gateway() as client:
        shown = await client.get(f"/experiments/{EXPERIMENT}")
        best = await client.get(f"/experiments/{EXPERIMENT}/best")
    finite = [it["best"]["value"] for it in shown["trials"] if it["best"]]

    assert (shown["progress"], shown["eta_seconds"]) == (1, None)
    assert shown["ended_at"]
    assert {it["state"] for it in shown["trials"]} <= {"completed", "stopped", "errored"}
    assert best["value"] == min(finite)
    assert best["hparams"] == best["trial"]["hparams"]
    assert best["checkpoint"] is None or best["checkpoint"]["trial_id"] == best["trial"]["id"]
    assert 0 < shown["units_trained"] <= shown["units_full"]
    assert math.isclose(shown["units_trained"], sum(it["units"] for it in shown["trials"]))


async def test_best_before_any_validation(world: World) -> None:
    """Without a finite value there is no best, and that is said."""
    await world.play(_history())
    async with world.gateway() as client:
        answer = await client.call("GET", f"/experiments/{EXPERIMENT}/best")

    assert (answer.status, answer.kind) == (409, "no-validation")


async def test_list_is_paged_newest_first(client: Client) -> None:
    """Pages hold every experiment once, also when others are submitted in between."""
    ids = [(await client.submit(EXPERIMENT_FILE)).json["experiment_id"] for _ in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        suffix = f"&cursor={cursor}" if cursor else ""
        page = await client.get(f"/experiments?limit=3{suffix}")
        seen += [it["id"] for it in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        await client.submit(EXPERIMENT_FILE)

    assert sorted(seen) == sorted(ids)


async def test_list_is_filtered(client: Client) -> None:
    """By state and by label."""
    await client.submit(EXPERIMENT_FILE)
    await client.submit(EXPERIMENT_FILE.replace("small", "large"))

    async def count(query: str) -> int:
        return len((await client.get(f"/experiments?{query}"))["items"])

    assert await count("label=small") == 1
    assert await count("label=none") == 0
    assert await count("state=active") == 2
    assert await count("state=paused&label=small") == 0


async def test_trials_are_paged(world: World) -> None:
    """By index; the cursor of an empty or a last page is null."""
    await world.play(play(0, max_trials=9))
    async with world.gateway() as client:
        first = await client.get(f"/experiments/{EXPERIMENT}/trials?limit=4")
        cursor = first["next_cursor"]
        rest = await client.get(f"/experiments/{EXPERIMENT}/trials?cursor={cursor}")

    assert [it["index"] for it in (*first["items"], *rest["items"])] == list(range(9))
    assert rest["next_cursor"] is None


async def test_ambiguous_and_unknown_ids(world: World) -> None:
    """A beginning that several share is refused; so is an id that nothing has."""
    for name in ("abcd1111", "abcd2222"):
        await world.write(submitted(name))
    async with world.gateway() as client:
        found = await client.get("/experiments/abcd1")
        ambiguous = await client.call("GET", "/experiments/abcd")
        unknown = [
            await client.call("GET", path)
            for path in (
                "/experiments/zzzz",
                "/experiments/zzzz/best",
                "/trials/zzzz.1",
                "/trials/abcd1111.0",
                "/trials/abcd1111",
                "/trials/abcd1111.x",
                "/checkpoints/zzzz",
                "/checkpoints/zzzz/archive",
            )
        ]

    assert found["id"] == "abcd1111"
    assert (ambiguous.status, ambiguous.kind) == (409, "ambiguous")
    assert "abcd1111, abcd2222" in ambiguous.json["detail"]
    assert "give more of the id" in ambiguous.json["detail"]
    assert [(it.status, it.kind) for it in unknown] == [(404, "not-found")] * len(unknown)


async def test_a_name_of_several(world: World) -> None:
    """The ids to choose from are given, the newest first: no more of the name would help."""
    for name in ("first111", "second22"):
        await world.write(submitted(name))
    async with world.gateway() as client:
        name = (await client.get("/experiments/first111"))["name"]
        refused = await client.call("GET", f"/experiments/{name}")

    assert (refused.status, refused.kind) == (409, "ambiguous")
    assert "several experiments, the newest first: second22, first111;" in refused.json["detail"]
    assert "give the id of one" in refused.json["detail"]


async def _listed(client: Client, query: str) -> list[str]:
    return [it["name"] for it in (await client.get(f"/experiments?{query}"))["items"]]


async def _world_of_lists(world: World) -> None:
    """Write experiments that differ in all that can be asked for."""
    for number, name in enumerate(("beta", "alpha 50%", "gamma")):
        fact = submitted(f"{number:08}")
        fact.config.update(name=name, labels=[name[0], "all"], description=f"Run № {number}")
        fact.config["hyperparameters"] = {"learning_rate": 0.5, "layers": {"vals": [number, 99]}}
        fact.config["resources"] = {"resource_pool": "fast" if number else "slow"}
        await world.write(fact)
    await world.write(CancelRequested(experiment_id="00000002"))


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("sort=name", ["alpha 50%", "beta", "gamma"]),
        ("sort=-name", ["gamma", "beta", "alpha 50%"]),
        ("sort=state&state=active", ["beta", "alpha 50%"]),
        ("sort=name&label=all&label=all", None),
        ("sort=name&label=a", ["alpha 50%"]),
        ("name=beta", ["beta"]),
        ("name=bet", []),
        ("sort=name&name=*a*", ["alpha 50%", "beta", "gamma"]),
        ("name=[ab]*", []),
        ("name=gamm%3F", []),
        ("actor=nobody", []),
        ("workspace=default&project=def*&pool=slow&owner=me", ["beta"]),
        ("q=alpha", ["alpha 50%"]),
        ("q=ALPH", ["alpha 50%"]),
        ("q=lph", []),
        ("q=00000001", ["alpha 50%"]),
        ("q=run+2", ["gamma"]),
        ("sort=name&q=learning_rate+0.5+all", ["alpha 50%", "beta", "gamma"]),
        ("sort=name&q=99", ["alpha 50%", "beta", "gamma"]),
        ("q=beta+gamma", []),
        ("q=%22%29+OR+%28NEAR+*", []),
        ("q=%22beta%22", ["beta"]),
        ("q=-", []),
        ("q=be%00", ["beta"]),
        ("q=beta%00run", ["beta"]),
        ("q=%00", []),
        ("name=beta%00", []),
        ("sort=name&name=*a%00*", []),
        ("label=a%00", []),
        ("actor=%00", []),
        pytest.param("q=" + "a%20" * 249 + "a", ["alpha 50%"], id="many words"),
        ("sort=name&cursor=WyJcdTAwMDAiLCJhIl0", ["alpha 50%", "beta", "gamma"]),
        ("sort=trials&cursor=WzEwMDAwMDAwMDAwMDAwMDAwMDAwMCwiYSJd", None),
    ],
)
async def test_lists_are_searched_filtered_and_sorted(
    world: World, query: str, names: list[str] | None
) -> None:
    """By names, labels, words and owners; what a search engine reads as its own is text."""
    await _world_of_lists(world)
    async with world.gateway() as client:
        if names is None:
            assert (await client.call("GET", f"/experiments?{query}")).status == 400
        else:
            assert await _listed(client, query) == names


@pytest.mark.parametrize("sort", ["name", "-name", "trials", "-submitted", "ended", "-state"])
async def test_pages_of_any_order_are_whole(world: World, sort: str) -> None:
    """Each experiment is on one page, in the order of the list as a whole."""
    await _world_of_lists(world)
    async with world.gateway() as client:
        whole = await _listed(client, f"sort={sort}")
        found, cursor = list[str](), ""
        while cursor is not None:
            path = f"/experiments?sort={sort}&limit=1" + (f"&cursor={cursor}" if cursor else "")
            page = await client.get(path)
            found += [it["name"] for it in page["items"]]
            cursor = page["next_cursor"]
        other = await client.call("GET", "/experiments?sort=trials&cursor=WyJhIiwiYiJd")

    assert found == whole
    assert len(found) == 3
    assert other.status == 400


async def test_names_as_ids(world: World) -> None:
    """Wherever an id is taken, so is a name that one experiment has; shared ones are refused."""
    for number, name in enumerate(("mnist", "mnist", "res/net v1.2", "abcd")):
        fields = {**config(), "name": name}
        await world.write(
            ExperimentSubmitted(
                experiment_id=f"abcd000{number}", config=fields, source="", code_digest=None
            )
        )
    quoted = quote("res/net v1.2", safe="")
    async with world.gateway() as client, world.searcher():

        async def trials() -> int:
            return int((await client.get(f"/experiments/{quoted}"))["trial_count"])

        await until(trials, bool)
        named = await client.get(f"/experiments/{quoted}")
        trial = await client.get(f"/trials/{quoted}.0")
        found = [
            await client.get("/find", params={"name": name})
            for name in ("res/net v1.2", "res/net v1.2.0", "abcd0001", "abcd0001.0")
        ]
        refused = [
            await client.call("GET", "/find", params={"name": name})
            for name in ("mnist", "mnist.0", "abcd", "mnits", "res/net v1.2.99", "x\0'\"%")
        ]
        asked = await client.call("POST", f"/experiments/{quoted}/kill")

    assert (named["id"], trial["id"]) == ("abcd0002", "abcd0002.0")
    assert [(it["kind"], it["id"]) for it in found] == [
        ("experiment", "abcd0002"),
        ("trial", "abcd0002.0"),
        ("experiment", "abcd0001"),
        ("trial", "abcd0001.0"),
    ]
    assert [it.status for it in refused] == [409, 409, 409, 404, 404, 404]
    assert "abcd0001, abcd0000" in refused[0].json["detail"]  # the newest first
    assert "did you mean mnist" in refused[3].json["detail"]
    assert "trials so far" in refused[4].json["detail"]
    assert asked.json["experiment_id"] == "abcd0002"


async def test_checkpoint_by_its_experiments_name(world: World) -> None:
    """The name stands for the experiment's id, also in front of the rest of a checkpoint's id."""
    history = History()
    history.write(submitted(max_trials=1), origin="client/x")
    history.decide()
    history.write(
        CheckpointStored(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.0",
            run=1,
            checkpoint_id=f"{EXPERIMENT}.0.1.70",
            steps_completed=70,
            size_bytes=1,
            files=1,
            digest="",
        )
    )
    await world.play(history)
    async with world.gateway() as client:
        for name in ("digits.0.1.70", f"{EXPERIMENT[:4]}.0.1.7", f"{EXPERIMENT}.0.1"):
            found = await client.get("/find", params={"name": name})
            assert (found["kind"], found["id"]) == ("checkpoint", f"{EXPERIMENT}.0.1.70")
            assert (await client.get(f"/checkpoints/{name}"))["id"] == f"{EXPERIMENT}.0.1.70"
        both = await client.call("GET", "/find", params={"name": f"{EXPERIMENT}.0.2"})

    assert both.status == 404


async def test_a_last_failure_is_no_restart(world: World) -> None:
    """Also where an earlier run was not the last for another reason."""
    history = History()
    search = submitted()
    search.config["max_restarts"] = 0
    history.write(search, origin="client/x")
    history.decide()
    trial = f"{EXPERIMENT}.0"
    for run, outcome in ((1, "killed"), (2, "failed")):
        history.write(
            TrialExited(
                experiment_id=EXPERIMENT,
                trial_id=trial,
                run=run,
                agent_id="a",
                outcome=outcome,  # type: ignore[arg-type] # a literal
                exit_code=1,
                signal=None,
                message="no",
            )
        )
        history.decide()
    await world.play(history)
    async with world.gateway() as client:
        shown = await client.get(f"/trials/{trial}")

    assert (shown["state"], shown["run"], shown["restarts"]) == ("errored", 2, 0)
