"""`rung pool configure`."""

import json

import pytest

from cli.conftest import Rung
from support.scripted_server import Scripted, json_answer, problem

_PATH = "/pools/default/configure"


def _answer(**more: object) -> dict[str, object]:
    return {"pool": "default", "policy": "fair", "options": {}, "warnings": [], **more}


def test_it_says_what_is_on_record(rung: Rung, server: Scripted) -> None:
    """Options are JSON where they can be, else text; warnings go to the error output."""
    options = {"a": 2.5, "b": "x", "c": True}
    answer = _answer(options=options, warnings=["pool default has no agent so far"])
    server.on(_PATH, json_answer(answer, 202))
    result = rung(
        *("pool", "configure", "default", "--policy", "fair"),
        *("--option", "a=2.5", "--option", "b=x", "--option", "c=true"),
    )

    [request] = server.requested(_PATH)
    assert json.loads(request.body) == {"policy": "fair", "options": options}
    assert request.headers["Idempotency-Key"]
    assert result.code == 0
    assert result.out == "Pool default is configured: policy fair, a 2.5, b x, c True.\n"
    assert result.err == "Warning: pool default has no agent so far\n"


def test_json_is_the_answer(rung: Rung, server: Scripted) -> None:
    """A script gets what the server answered."""
    server.on(_PATH, json_answer(_answer(), 202))
    assert rung("pool", "configure", "default", "--policy", "fair", "--json").json == _answer()


def test_a_refusal_is_told(rung: Rung, server: Scripted) -> None:
    """What is wrong, and what there is."""
    errors = [{"path": "policy", "message": "there is no policy 'x'; there is priority"}]
    server.on(_PATH, problem(422, "invalid-policy", errors=errors))
    result = rung("pool", "configure", "default", "--policy", "x")

    assert result.code != 0
    assert "policy: there is no policy 'x'; there is priority" in result.err


@pytest.mark.parametrize("option", ["a", "=1"])
def test_an_option_has_a_name_and_a_value(rung: Rung, server: Scripted, option: str) -> None:
    """Anything else is refused before anything is sent."""
    result = rung("pool", "configure", "default", "--policy", "fair", "--option", option)

    assert result.code == 2
    assert f"--option {option}: give NAME=VALUE" in result.err
    assert server.requested(_PATH) == []
