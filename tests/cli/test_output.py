"""Tables and facts, as wide as what they are printed to."""

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rung.cli.output import print_facts, print_table, settings, written
from rung.config import load

Terminal = Callable[[int], io.StringIO]


class _Terminal(io.StringIO):
    """A terminal that has no size of its own."""

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return what makes standard output a terminal of some columns."""

    def made(columns: int) -> io.StringIO:
        stream = _Terminal()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    monkeypatch.setenv("NO_COLOR", "1")
    return made


def test_a_table_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are as wide as their widest cell, in columns of the terminal."""
    rows: list[list[Any]] = [["a", "表", 1], ["bc", "e\u0301", 200], ["é", None, True]]
    assert print_table(("id", "name", "n"), rows, right=("n",)) == []
    assert capsys.readouterr().out.split("\n") == [
        "id  name    n",
        "a   表      1",
        "bc  e\u0301     200",
        "é   -     yes",
        "",
    ]


def test_what_is_too_wide_is_folded(terminal: Terminal) -> None:
    """The widest column is narrowed first, ids last; words are broken only if they must be."""
    out = terminal(25)
    row = ["k3v9x2ab.12", "a word and anotherlongone", "表表表"]
    assert print_table(("trial", "text", "more"), [row]) == []
    assert out.getvalue().split("\n") == [
        "trial        text   more",
        "k3v9x2ab.12  a      表表",
        "             word   表",
        "             and",
        "             anoth",
        "             erlon",
        "             gone",
        "",
    ]


def test_no_line_is_wider_than_the_terminal(terminal: Terminal) -> None:
    """However narrow it is, as long as each column has room for a letter."""
    for columns in range(9, 60):
        out = terminal(columns)
        print_table(("id", "a", "b"), [["x" * 20, "y " * 10, "z" * 5]])
        assert max(len(line) for line in out.getvalue().splitlines()) <= columns


def test_columns_that_can_be_spared(terminal: Terminal) -> None:
    """Those named first are left out first, and no more than needed."""
    row = ["x" * 8, "y" * 8, "z" * 8]
    for columns, left_out in ((28, []), (27, ["b"]), (18, ["b"]), (17, ["b", "a"])):
        out = terminal(columns)
        assert print_table(("id", "a", "b"), [row], spare=("b", "a")) == left_out
        assert len(out.getvalue().splitlines()) == 2


def test_facts(terminal: Terminal) -> None:
    """Values of None are left out; a long value goes on below itself."""
    out = terminal(12)
    print_facts([("name", "one two three"), ("x", None), ("state", "active")])
    assert out.getvalue().split("\n") == [
        "name   one",
        "       two",
        "       three",
        "state  activ",
        "       e",
        "",
    ]


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colours(
    variables: dict[str, str], *, coloured: bool, terminal: Terminal, monkeypatch: Any
) -> None:
    """States are coloured on a terminal that shows colours; the cells are placed alike."""
    out = terminal(80)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    print_table(("id", "state", "n"), [["active", "active", 1]])
    expected = (
        "\x1b[1mid\x1b[0m      \x1b[1mstate\x1b[0m   \x1b[1mn\x1b[0m\n"
        "active  \x1b[32mactive\x1b[0m  1\n"
    )
    plain = "id      state   n\nactive  active  1\n"
    assert out.getvalue() == (expected if coloured else plain)


_KINDS: Any = [
    None, True, False, "false", "yes", "True", "null", "nan", 1, 1.0, "1", "1.0",
    "1e5", 0.1 + 0.2, 1e-7, 1e300, [64, [32, 16]], [], {}, {"name": "adam", "betas": [0.9, 0.999]},
    "ünïcødé 中文 🎉", "", 0, -0.5,
    "adam", "resnet50/a b", "a: b", "a,b", "[a]", "# x", " a", "~", "-", "a=b", "é",
]  # fmt: skip


@pytest.mark.parametrize("value", _KINDS, ids=repr)
def test_a_written_value_reads_as_itself(value: Any) -> None:
    """What is shown of a hyperparameter, put into an experiment file, gives the same value."""
    text = (
        "name: a\nentrypoint: python3 train.py\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
        f"hyperparameters:\n  x: {{type: const, val: {written(value)}}}\n"
    )
    read = load(text, today_seed=1).expanded()["hyperparameters"]["x"]["val"]
    assert (type(read), read) == (type(value), value)


def test_values_are_told_apart() -> None:
    """Each kind looks different, also with fewer digits."""
    for digits in (None, 5):
        shown = [written(value, digits=digits) for value in _KINDS]
        assert len(set(shown)) == len(_KINDS)
    assert settings({"lr": 0.123456789, "on": True, "opt": {"name": "sgd", "wd": None}}) == (
        "lr=0.12346 on=true opt.name=sgd opt.wd=null"
    )


def test_a_large_value_is_cut() -> None:
    """With its size; `--json` has the whole."""
    shown = written(list(range(24_000)))
    assert shown.startswith("[0, 1, 2, ")
    assert shown.endswith("… (156,890 characters, 24,000 items)")
    assert len(shown) < 300
