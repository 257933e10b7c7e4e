"""Log policies are looked for once each, and for a bounded part of the time."""

from itertools import count
from typing import Any

from rung.agent.logs.policy_match import BURST_S, PolicyMatch


def config(*patterns: str) -> dict[str, Any]:
    """Return a configuration with a policy for each pattern."""
    return {"log_policies": [{"pattern": each, "action": "cancel_retries"} for each in patterns]}


def test_each_policy_matches_once() -> None:
    """The first line counts; the others are still looked for."""
    match = PolicyMatch(config("a", "b", "a|b"))

    assert [(p.pattern, line) for p, line in match.matches(["x", "a1", "a2"])] == [
        ("a", "a1"),
        ("a|b", "a1"),
    ]
    assert [(p.pattern, line) for p, line in match.matches(["a3 b", "b"])] == [("b", "a3 b")]
    assert list(match.matches(["a b"])) == []


def test_what_an_earlier_release_took_is_left_out() -> None:
    """A pattern that RE2 does not know has no effect, and the run goes on."""
    match = PolicyMatch(config("(?=a)", "b"))

    assert [p.pattern for p, _ in match.matches(["ab"])] == ["b"]


def test_costly_patterns_take_no_more_than_their_share() -> None:
    """Beyond it lines are passed over, and looked at again later."""
    ticks = count()
    match = PolicyMatch(config("a"), lambda: next(ticks) * BURST_S / 10)

    assert list(match.matches(["x"] * 100)) == []
    assert 80 <= match.passed_over <= 95
    for _ in range(1000):  # time passes
        next(ticks)
    assert [line for _, line in match.matches(["a"])] == ["a"]
