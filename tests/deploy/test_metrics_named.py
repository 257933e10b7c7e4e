"""Whatever names a metric, an alert or a command, names one that there is."""

import re
import shlex
from pathlib import Path
from typing import Final

import click
import pytest
import yaml

from deploy.place import DEPLOY, ROOT
from rung.cli.group import rung
from rung.runtime.metrics import catalog
from rung.runtime.metrics.catalog import METER

_NAMES: Final = {instrument.name: instrument for instrument in METER.instruments}
_SERIES: Final = {
    f"{instrument.name}{part}"
    for instrument in METER.instruments
    for part in (("", "_bucket", "_count", "_sum") if instrument.kind == "histogram" else ("",))
}
_RUNBOOKS: Final = sorted((ROOT / "docs/operations").glob("*.md"))
_PAGES: Final = [
    *sorted((ROOT / "docs").glob("*.md")),
    *_RUNBOOKS,
    *sorted(DEPLOY.rglob("*.y*ml")),
]
_ALERTS: Final = {
    rule["alert"]: rule["annotations"]["runbook"]
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
_each_page = pytest.mark.parametrize("page", _PAGES, ids=lambda it: str(it.relative_to(ROOT)))
_each_runbook = pytest.mark.parametrize("page", _RUNBOOKS, ids=lambda it: it.stem)
_CODE: Final = "\n".join(
    path.read_text()
    for root in ("foundation", "services", "worker", "cli")
    for path in (ROOT / root).rglob("*.py")
    if path.name != "catalog.py"
)


@_each_page
def test_a_metric_that_is_named_exists(page: Path) -> None:
    """Whoever looks for it finds it."""
    named = set(re.findall(r"\brung_[a-z_]+[a-z]\b(?!/)", page.read_text()))

    assert named <= _SERIES, page


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, it in vars(catalog).items()
        if any(it is instrument.metric for instrument in METER.instruments)
    ],
)
def test_what_is_declared_is_measured(name: str) -> None:
    """An instrument that nobody plays would be silent for ever."""
    assert f"catalog.{name}" in _CODE


def test_operating_lists_every_metric() -> None:
    """An operator reads there what there is, with its labels."""
    page = (ROOT / "docs/OPERATING.md").read_text()
    listed = dict(re.findall(r"^\| `(rung_[a-z_]+)` \| ([^|]*) \|", page, re.MULTILINE))

    assert {name: labels.split() for name, labels in listed.items()} == {
        name: [f"`{label}`" for label in it.labels] for name, it in _NAMES.items()
    }


@_each_runbook
def test_a_runbook_is_for_the_alerts_that_point_to_it(page: Path) -> None:
    """Whoever is woken by an alert finds it named on the page that the alert says."""
    text = page.read_text()
    pointing = {name for name, runbook in _ALERTS.items() if runbook.endswith(page.name)}

    assert pointing <= set(re.findall(r"\bRung[A-Z]\w+", text)) or page.stem.startswith("restore")
    assert set(re.findall(r"`(Rung[A-Z]\w+)`", text)) <= set(_ALERTS)


@_each_runbook
def test_a_command_of_a_runbook_exists(page: Path) -> None:
    """At night nobody should meet `no such option`."""
    for words in _commands(page.read_text()):
        command, given = _resolved(words)
        known = {option for parameter in command.params for option in parameter.opts}
        assert given <= known | {"--help"}, (page.name, words)


@_each_runbook
def test_a_link_of_a_runbook_leads_somewhere(page: Path) -> None:
    """Pages are moved, and links with them."""
    for target in re.findall(r"\]\(([^)#:]+?\.md)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).is_file(), target


def _commands(text: str) -> list[list[str]]:
    """Return every `rung …` of a page, in a block of code or within a line."""
    blocks = re.findall(r"^ {4,}(rung .+?)(?:  #.*)?$", text, re.MULTILINE)
    inline = re.findall(r"`(rung [^`]+)`", text)
    lines = [line.partition(" > ")[0] for line in (*blocks, *inline)]
    return [shlex.split(line.replace("…", ""))[1:] for line in lines]


def _resolved(words: list[str]) -> tuple[click.Command, set[str]]:
    command: click.Command = rung
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        inner = command.get_command(click.Context(command), rest[0])
        assert inner is not None, words
        command, rest = inner, rest[1:]
    return command, {word.partition("=")[0] for word in rest if word.startswith("-")}
