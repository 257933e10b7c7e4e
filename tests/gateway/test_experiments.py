"""Experiments and trials as the API shows them."""

import math

import pytest

from gateway.client import Client
from gateway.conftest import EXPERIMENT_FILE, World
from gateway.scenario import EXPERIMENT, History, play, submitted
from rung.events.experiment import CancelRequested
from rung.events.trial import TrialExited, TrialStarted, TrialValidated


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


async def test_time_left_is_told(world: World) -> None:
    """From the second report on there is an estimate."""
    history = _history()
    history.write(_validated(0, 3, 0.5))
    history.write(_validated(0, 6, 0.4))
    history.decide()
    await world.play(history)
    async with world.gateway() as client:
        shown = await client.get(f"/experiments/{EXPERIMENT}")

    assert shown["eta_seconds"] == 0  # the reports are of January: it is long overdue


async def test_no_time_is_left_at_the_end(world: World) -> None:
    """A search that has ended has nothing to wait for."""
    ended = play(1)
    assert ended.searcher.state(EXPERIMENT) is None
    await world.play(ended)
    async with world.gateway() as client:
        shown = await client.get(f"/experiments/{EXPERIMENT}")

    assert (shown["state"], shown["eta_seconds"]) == ("completed", None)


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


async def test_secrets_are_not_shown(world: World, client: Client) -> None:
    """Neither the configuration nor the file shows them; on record, for the run, they are."""
    plain = (await client.submit(EXPERIMENT_FILE)).json
    answer = await client.submit(EXPERIMENT_FILE + "data: {n: 1, secrets: {token: hush}}\n")
    shown = await client.call("GET", answer.json["url"].removeprefix("/api/v1"))
    again = await client.submit(shown.json["source"])
    facts = await world.all("experiments")

    assert b"hush" not in shown.body
    assert shown.json["config"]["data"] == {"n": 1, "secrets": {"token": "********"}}
    assert any("data.secrets" in warning for warning in answer.json["warnings"])
    assert (again.status, again.json["errors"][0]["path"]) == (422, "data.secrets.token")
    assert sum("hush" in str(fact) for fact in facts) == 1
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
    assert [(it.status, it.kind) for it in unknown] == [(404, "not-found")] * len(unknown)


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
        ("workspace=lab&project=digits&pool=slow", ["beta"]),
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
