"""`deploy/grafana`: the dashboard, and what Grafana is given to find it.

Its queries are held against Prometheus itself where `promtool` is installed.
"""

import itertools
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy.measured import MEASURED, OF_EVERY_PROCESS, OF_EVERY_TARGET
from deploy.place import DEPLOY, run, tool
from deploy.promql import named

_FOLDER: Final = DEPLOY / "grafana"
_DASHBOARD: Final[dict[str, Any]] = json.loads((_FOLDER / "rung.json").read_text())
_PANELS: Final[list[dict[str, Any]]] = _DASHBOARD["panels"]
_QUERIES: Final = [
    (panel["title"], target) for panel in _PANELS for target in panel.get("targets", [])
]
_each_query = pytest.mark.parametrize(
    ("title", "target"), _QUERIES, ids=[f"{title}-{target['refId']}" for title, target in _QUERIES]
)


@_each_query
def test_a_panel_asks_for_what_is_measured(title: str, target: dict[str, Any]) -> None:
    """A name or a label that no service exports would leave the panel empty."""
    found = named(target["expr"])

    assert found.series, title
    assert found.series - OF_EVERY_PROCESS <= set(MEASURED)
    for series, label in found.matched:
        assert label in MEASURED.get(series, frozenset()) | OF_EVERY_TARGET, series
    known = frozenset().union(*(MEASURED.get(series, ()) for series in found.series))
    assert found.grouped <= known | OF_EVERY_TARGET


@_each_query
def test_a_legend_names_labels_that_the_query_keeps(title: str, target: dict[str, Any]) -> None:
    """`{{x}}` of a label that was aggregated away would be an empty word."""
    legend = target["legendFormat"]
    used = {part.partition("}}")[0] for part in legend.split("{{")[1:]}

    kept = named(target["expr"]).grouped or OF_EVERY_TARGET
    assert used <= kept, title


def test_whatever_is_measured_is_shown() -> None:
    """What an operator cannot see need not be measured."""
    shown = frozenset().union(*(named(target["expr"]).series for _, target in _QUERIES))
    sums = {name for name in MEASURED if name.endswith(("_sum", "_count"))}

    assert set(MEASURED) - sums - shown == set()


def test_panels_have_numbers_and_places_of_their_own() -> None:
    """Two panels of one number share their settings; two in one place hide one another."""
    assert len({panel["id"] for panel in _PANELS}) == len(_PANELS)
    for one, other in itertools.combinations((panel["gridPos"] for panel in _PANELS), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in _PANELS)


@pytest.mark.parametrize("panel", _PANELS, ids=lambda panel: f"{panel['id']}-{panel['title']}")
def test_a_panel_reads_the_chosen_data_source(panel: dict[str, Any]) -> None:
    """The dashboard works with whatever the Prometheus of an installation is called."""
    if panel["type"] == "row":
        return
    sources = [panel["datasource"], *(target["datasource"] for target in panel.get("targets", []))]

    assert {source["uid"] for source in sources} == {"${datasource}"}


def test_grafana_is_given_the_data_source_and_the_folder() -> None:
    """What the compose file mounts is what the provisioning names."""
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    mounts = dict(m.split(":")[:2] for m in compose["services"]["grafana"]["volumes"])
    sources = _read("datasources/prometheus.yml")["datasources"]
    [provider] = _read("dashboards/rung.yml")["providers"]

    assert [source["url"] for source in sources] == ["http://prometheus:9090"]
    assert mounts["../grafana/rung.json"] == f"{provider['options']['path']}/rung.json"
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    """Each query parses, with Grafana's variables filled in."""
    rules = [
        {"record": f"panel:query:{number}", "expr": _filled(target["expr"])}
        for number, (_, target) in enumerate(_QUERIES)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    run(tool("promtool"), "check", "rules", file)


def _filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "1m").replace("$pool", "default")


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((_FOLDER / "provisioning" / name).read_text())
    return found
