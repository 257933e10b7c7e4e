"""The guides, followed word by word in a fresh virtual environment with the built wheel."""

import pytest

from docs.conftest import TUTORIAL, Reader
from support.code_blocks import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_the_tutorial(reader: Reader) -> None:
    """From the wheel to the best model of a search, exported; what is shown is what is printed."""
    reader.follow(TUTORIAL)


@pytest.mark.parametrize("page", ["CLIENT", "FROM_DETERMINED", "FROM_RAY_AND_OPTUNA"])
def test_a_guide_for_later(page: str, later_reader: Reader) -> None:
    """What it has of Rung runs as it stands, once Rung is installed as the tutorial says."""
    later_reader.follow(ROOT / f"docs/{page}.md")
