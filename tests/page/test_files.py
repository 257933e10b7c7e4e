"""The page's files keep to a strict content security policy, and work without a network."""

import re
from pathlib import Path

import pytest

import rung.gateway

PAGE = Path(rung.gateway.__file__).parent / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]


def _read(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def test_the_page_is_there() -> None:
    """The files that the gateway serves at / are in the package."""
    assert {"index.html", "app.js", "style.css", "icon.svg"} <= {path.name for path in FILES}


def test_markup_has_no_inline_script_or_style() -> None:
    """A policy without 'unsafe-inline' lets everything through."""
    markup = _read("index.html")
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\bstyle=|\bon\w+=", markup) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    """No file names another host; the namespace of SVG is no address."""
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?://|[\"'(]//\w|@import", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_never_make_markup_of_text(path: Path) -> None:
    """What users made can only enter the page as text."""
    text = path.read_text(encoding="utf-8")
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    )
    assert re.findall(forbidden, text) == []
    assert re.findall(r"setAttribute\(\"(?:style|on\w*)\"", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_import_is_there(path: Path) -> None:
    """A script imports files of the page, and only names that those export."""
    text = path.read_text(encoding="utf-8")
    for names, source in re.findall(r"import \{([^}]*)\} from \"\./([^\"]+)\"", text):
        exported = set(
            re.findall(r"export (?:async )?(?:const|function\*?|class) (\w+)", _read(source))
        )
        assert {name.strip() for name in names.split(",") if name.strip()} <= exported
