"""What an entrypoint needs of the code."""

from typing import Any

import pytest

from rung.config.code_archive import CodeArchive
from rung.config.sections.entrypoint import missing_script

CODE = CodeArchive(b"", "", 0, frozenset({"train.py", "run.sh", "src/train.py", "linked"}))


@pytest.mark.parametrize(
    ("entrypoint", "missing"),
    [
        ("python3 train.py --lr 1", None),
        ("python -u ./src/../train.py", None),
        ("./run.sh", None),
        ("python3 linked/train.py", None),
        ("python3 main.py", "main.py"),
        (["python3.12", "-u", "src/main.py"], "src/main.py"),
        ("./src/run.sh x", "src/run.sh"),
        ("python3 -m package.main", None),
        ("python3 /opt/main.py", None),
        ("python3 ../main.py", None),
        ("cd src && python3 main.py", None),
        ("X=1 python3 main.py", None),
        ("sh -c 'python3 main.py'", None),
        ("python3 'main.py", None),
        ("xgboost main.py", None),
        ("", None),
        (None, None),
    ],
)
def test_a_script_that_is_not_there(entrypoint: Any, missing: str | None) -> None:
    """It is named where it is certain that the run would not find it."""
    assert missing_script(entrypoint, CODE) == missing


def test_without_code_there_is_no_script() -> None:
    """Who forgets the folder hears of it."""
    assert missing_script("python3 train.py", None) == "train.py"
    assert missing_script("python3 -m train", None) is None
