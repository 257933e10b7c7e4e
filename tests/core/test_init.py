"""`rung.init`: the same run for every framework."""

import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rung
from rung import core

LAZY = """
import sys, rung
with rung.init(hparams={"lr": 0.1}, storage="kept") as run:
    print(run.hparams["lr"], *sorted({"torch", "keras", "tensorflow"} & set(sys.modules)))
"""


@pytest.fixture(autouse=True)
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by hand, in a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNG_ALLOCATION", raising=False)


def test_no_framework_is_imported(tmp_path: Path) -> None:
    """A script without one gets its run as fast as from `rung.core.init`."""
    ran = subprocess.run(
        [sys.executable, "-c", LAZY], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == ["0.1"]


def test_what_the_script_imported_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The framework's own `init` runs, with the same arguments; the run is its run."""
    adapter, given = types.ModuleType("rung.lightning"), list[Any]()

    @contextmanager
    def init(**arguments: Any) -> Iterator[core.Context]:
        given.append(arguments["hparams"])
        with core.init(**arguments) as run:
            yield run
        given.append("closed")

    vars(adapter)["init"] = init
    for name in ("keras", "tensorflow", "transformers"):
        monkeypatch.delitem(sys.modules, f"rung.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "rung.lightning", adapter)
    with rung.init(hparams={"lr": 0.5}) as run:
        assert isinstance(run, core.Context)
        assert run.hparams == {"lr": 0.5}
        assert given == [{"lr": 0.5}]
    assert given == [{"lr": 0.5}, "closed"]
