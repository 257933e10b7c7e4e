"""Patterns of log lines: what is refused, what is found, and that no line takes long."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.config import InvalidExperimentFile, load
from rung.config.log_pattern import CHARACTERS_MAX, LogPatterns, PatternRefused, check
from rung.config.sections.log_policy import POLICIES_MAX, Policy, policies_of

FILE = "entrypoint: t\nsearcher: {name: single, metric: loss}\n"


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", r"(a)\1", "(a{1000}){1000}", "(.{0,900}a)b"])
def test_what_re2_does_not_take_is_refused_at_submission(pattern: str) -> None:
    """With the path of the field, before anything runs."""
    with pytest.raises(PatternRefused, match="RE2"):
        check(pattern)
    text = f"{FILE}log_policies: [{{name: a, pattern: '{pattern}', action: cancel_retries}}]\n"
    with pytest.raises(InvalidExperimentFile) as refused:
        load(text, today_seed=1)
    (problem,) = refused.value.details
    assert problem.path == "log_policies[0].pattern"


def test_too_many_policies_are_refused() -> None:
    """Each is looked for in every line."""
    each = ", ".join(f"{{pattern: a{number}}}" for number in range(POLICIES_MAX + 1))
    with pytest.raises(InvalidExperimentFile, match="at most 32 policies"):
        load(f"{FILE}log_policies: [{each}]\n", today_seed=1)


def test_policies_are_read_in_both_forms() -> None:
    """An action is a word or, in older files, a map; without a pattern a policy is off."""
    text = (
        f"{FILE}log_policies: [{{name: a, pattern: x, action: webhook}}, {{name: off}},"
        " {pattern: y, action: {type: exclude_node}}, {name: b, pattern: z}]\n"
    )
    assert policies_of(load(text, today_seed=1).expanded()) == [
        Policy("a", "x", "webhook"),
        Policy("y", "y", "exclude_node"),
        Policy("b", "z", ""),
    ]


def test_patterns_are_found_anywhere_in_a_line() -> None:
    """As in Determined, unless the pattern itself is anchored; only in the line's beginning."""
    patterns = LogPatterns([".*CUDA out of memory.*", "^Error [0-9]+$", "ÿ"])

    assert patterns.found("RuntimeError: CUDA out of memory. Tried ÿ") == [0, 2]
    assert patterns.found("Error 12") == [1]
    assert patterns.found("an Error 12") == []
    assert patterns.found("x" * CHARACTERS_MAX + "ÿ") == []
    assert LogPatterns([]).found("x") == []


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(x?){100}x{100}z", "[^a]{0,100}q", "(x|x)*$y"])
def test_no_line_holds_up(pattern: str) -> None:
    """Patterns over which others backtrack for hours take milliseconds."""
    check(pattern)
    patterns = LogPatterns([pattern])
    begun = time.process_time()
    patterns.found("x" * 65536)
    assert time.process_time() - begun < 1.0


@given(st.text(), st.text())
def test_any_text_is_refused_or_looked_for(pattern: str, line: str) -> None:
    """Neither a pattern nor a line raises anything else."""
    try:
        check(pattern)
    except PatternRefused:
        return
    assert LogPatterns([pattern]).found(line) in ([], [0])
