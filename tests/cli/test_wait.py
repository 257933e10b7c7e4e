"""Asking for an end, and waiting for it: the exit code says how it came."""

import json
import re

import pytest

from cli.conftest import EXPERIMENT, Rung, stream
from rung.client import _wait
from rung.events.trial import ENDED_EARLY
from support import recorded_answers
from support.scripted_server import Answer, Scripted, json_answer, problem


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "kill"])
def test_control(action: str, server: Scripted, rung: Rung) -> None:
    """What is asked for is sent once, with a key, and confirmed."""
    answer = {"experiment_id": "k3v9x2ab", "requested": action}
    server.on(f"POST {EXPERIMENT}/{action}", json_answer(answer, 202))
    result = rung(action, "k3v9x2ab")
    assert result.code == 0
    assert "k3v9x2ab" in result.out
    assert server.requests[0].headers["Idempotency-Key"]
    assert rung(action, "k3v9x2ab", "--json").json == answer


def test_canceling_and_waiting(server: Scripted, rung: Rung) -> None:
    """With --wait, the end is waited for, and being canceled is what was wanted."""
    server.on(
        f"POST {EXPERIMENT}/cancel",
        json_answer(
            {"experiment_id": "k3v9x2ab", "requested": "cancel"}, 202, **{"Rung-After": "token"}
        ),
    )
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment("canceled")))
    result = rung("cancel", "k3v9x2ab", "--wait")
    assert result.code == 0
    assert "canceled after" in result.out
    (shown,) = server.requested(EXPERIMENT)
    assert shown.headers["Rung-After"] == "token"
    lines = rung("cancel", "k3v9x2ab", "--wait", "--json").out.splitlines()
    asked, ended = (json.loads(line) for line in lines)
    assert (asked["requested"], ended["state"]) == ("cancel", "canceled")


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("errored", 1), ("canceled", 5)])
def test_wait(state: str, code: int, server: Scripted, rung: Rung) -> None:
    """The exit code says how it ended; progress goes to standard error."""
    server.on(
        EXPERIMENT,
        json_answer(recorded_answers.experiment("active")),
        json_answer(recorded_answers.experiment(state)),
    )
    server.on(f"{EXPERIMENT}/events", stream({"type": "x"}))
    result = rung("wait", "k3v9x2ab")
    assert result.code == code
    assert result.out.startswith(f"k3v9x2ab {state} after 1 min 05 s: 2 trials\n")
    assert "k3v9x2ab active 50%" in result.err
    assert "best error 0.125 by k3v9x2ab.0 (lr=0.01 " in result.err
    assert "rungs 1@4 1@16 epochs" in result.err
    assert "about 1 min 15 s left" in result.err
    quiet = rung("wait", "k3v9x2ab", "--json")
    assert (quiet.code, quiet.json["state"], quiet.err) == (code, state, "")


def test_what_errored_is_said_at_the_end_and_before(server: Scripted, rung: Rung) -> None:
    """The cause is quoted once, with the log to read; progress has it too."""
    reason = "3 of 20 trials errored: KeyError: 'x' (k3v9x2ab.4); 17 completed"
    failures = [recorded_answers.failure()]
    server.on(
        EXPERIMENT,
        json_answer(recorded_answers.experiment("active", failures=failures)),
        json_answer(recorded_answers.experiment("completed", failures=failures, reason=reason)),
    )
    server.on(f"{EXPERIMENT}/events", stream({"type": "x"}))
    result = rung("wait", "k3v9x2ab")
    assert result.code == 0
    assert result.out.startswith(
        f"k3v9x2ab completed after 1 min 05 s: {reason}\n"
        "log: `rung logs k3v9x2ab.4` shows the first of them\n"
    )
    assert "3 errored: KeyError: 'x' (k3v9x2ab.4)" in result.err


def test_what_can_never_be_placed_is_said(server: Scripted, rung: Rung) -> None:
    """While it waits; `rung show` says it too."""
    lack = "pool default cannot give a trial 4 slots"
    server.on(
        EXPERIMENT,
        json_answer(recorded_answers.experiment("active", unplaced=lack)),
        json_answer(recorded_answers.experiment("completed")),
    )
    server.on(f"{EXPERIMENT}/events", stream({"type": "x"}))
    assert lack in rung("wait", "k3v9x2ab").err
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment("active", unplaced=lack)))
    server.on(f"{EXPERIMENT}/trials", json_answer({"items": [], "next_cursor": None}))
    assert re.search(rf"^waiting +{lack}$", rung("show", "k3v9x2ab").out, re.MULTILINE)


def test_trials_that_ended_before_their_length_are_said(server: Scripted, rung: Rung) -> None:
    """One of them is quoted at the end."""
    trials = [recorded_answers.trial(0, reason=f"{ENDED_EARLY} 1 of 16")]
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment("completed", trials=trials)))
    result = rung("wait", "k3v9x2ab")
    assert "early: the script ended by itself at 1 of 16 (k3v9x2ab.0)\n" in result.out


def test_what_failed_after_its_training_is_said(server: Scripted, rung: Rung) -> None:
    """The trial is completed all the same, and so is the exit code."""
    late = [recorded_answers.failure("RuntimeError: no export", 1, 2)]
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment(late_failures=late)))
    result = rung("wait", "k3v9x2ab")
    assert result.code == 0
    assert (
        "1 failed: after the training: RuntimeError: no export (k3v9x2ab.2)\n"
        "log: `rung logs k3v9x2ab.2` shows the first of them\n"
    ) in result.out


def test_an_end_before_the_stream_is_open_is_seen_soon(
    server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an event, by reading again."""
    monkeypatch.setattr(_wait, "POLL_S", 1000.0)
    server.on(
        EXPERIMENT,
        json_answer(recorded_answers.experiment("active")),
        json_answer(recorded_answers.experiment("completed")),
    )
    server.on(f"{EXPERIMENT}/events", stream())
    assert rung("wait", "k3v9x2ab").code == 0


def test_wait_survives_the_server(server: Scripted, rung: Rung) -> None:
    """A server that is away for a moment is waited for."""
    server.on(
        EXPERIMENT,
        json_answer(recorded_answers.experiment("active")),
        Answer(drop=True, body=b""),
        problem(503, "starting"),
        json_answer(recorded_answers.experiment()),
    )
    server.on(f"{EXPERIMENT}/events", stream({"type": "x"}))
    assert rung("wait", "k3v9x2ab", "-q").code == 0
