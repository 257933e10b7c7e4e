"""What `rung.tune` returns, while the search runs and afterwards."""

from rung.client import Client
from rung.tuning.result import TuneResult
from support import recorded_answers
from support.scripted_server import TOKEN, Scripted, json_answer


def test_it_is_shown_before_there_is_a_result() -> None:
    """With `wait=False` nothing is kept of what was there at first."""
    config = {"searcher": {"metric": "error"}}
    path = "/experiments/k3v9x2ab"
    first = recorded_answers.experiment("active", best=None, trials=[], config=config)
    last = recorded_answers.experiment(config=config)
    with Scripted() as server:
        server.on(
            path, json_answer(first), json_answer(first), json_answer(first), json_answer(last)
        )
        server.on(f"{path}/best", json_answer(recorded_answers.best()))
        with Client(server.url, TOKEN) as client:
            result = TuneResult(client.handle("k3v9x2ab"))
            assert repr(result) == "<k3v9x2ab: active, no result>"
            assert len(result.trials) == 0
            assert len(result.trials) == 2
            assert repr(result).startswith("<k3v9x2ab: best error=0.125 with {")
