"""`deploy/prometheus`: what Prometheus reads.

Held against Prometheus itself where `promtool` is installed (Debian's package `prometheus`).
"""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy.measured import MEASURED, OF_EVERY_PROCESS, OF_EVERY_TARGET
from deploy.place import DEPLOY, ROOT, SERVICES, run, tool
from deploy.promql import named

_FOLDER: Final = DEPLOY / "prometheus"
_RULES: Final[list[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((_FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
_RUNBOOKS: Final = (
    "agent-disk",
    "broker-lost",
    "clickhouse-full",
    "poisoned-message",
    "restore-from-archive",
    "s3-down",
    "upgrade",
)
_each_rule = pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule["alert"])


@_each_rule
def test_an_alert_asks_for_what_is_measured(rule: dict[str, Any]) -> None:
    """A name that no service exports would never fire."""
    found = named(rule["expr"])

    assert found.series - OF_EVERY_PROCESS <= set(MEASURED)
    for series, label in found.matched:
        assert label in MEASURED.get(series, frozenset()) | OF_EVERY_TARGET, series
    known = frozenset().union(*(MEASURED.get(series, ()) for series in found.series))
    assert found.grouped <= known | OF_EVERY_TARGET


@_each_rule
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    """Whoever is woken by it finds what it means, how urgent it is, and the page to follow."""
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert {"summary", "description", "runbook"} == set(rule["annotations"])
    page = re.fullmatch(r"docs/operations/([a-z0-9-]+)\.md", rule["annotations"]["runbook"])
    assert page is not None
    assert page[1] in _RUNBOOKS


@_each_rule
def test_a_summary_names_labels_that_the_alert_has(rule: dict[str, Any]) -> None:
    """`$labels.x` of a label that was aggregated away would be an empty word."""
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    found = named(rule["expr"])
    if found.grouped:
        assert used <= found.grouped
    else:
        assert used <= OF_EVERY_TARGET.union(*(MEASURED.get(name, ()) for name in found.series))


def test_alerts_have_names_of_their_own() -> None:
    """Two alerts of one name cannot be told apart, or silenced apart."""
    names = [rule["alert"] for rule in _RULES]

    assert sorted(set(names)) == sorted(names)


def test_every_service_is_missed() -> None:
    """A service that is gone leaves no time series: each has to be asked for by name."""
    gone = next(rule for rule in _RULES if rule["alert"] == "RungServiceGone")

    assert set(re.findall(r'component="([a-z-]+)"\}\)', gone["expr"])) == set(SERVICES)


def test_every_runbook_is_pointed_to() -> None:
    """A page that no alert opens would not be found at night."""
    pointed = {rule["annotations"]["runbook"] for rule in _RULES}

    assert {f"docs/operations/{name}.md" for name in _RUNBOOKS} == pointed


@pytest.mark.skipif(not (ROOT / "docs/operations").is_dir(), reason="there are no runbooks")
@pytest.mark.parametrize("name", _RUNBOOKS)
def test_a_runbook_is_there(name: str) -> None:
    """The page that an alert names exists."""
    assert (ROOT / f"docs/operations/{name}.md").is_file()


def test_prometheus_finds_every_service_of_the_compose_file() -> None:
    """Each is looked up by its name there, at its probe port."""
    config = yaml.safe_load((_FOLDER / "prometheus.yml").read_text())
    [scrape] = [job for job in config["scrape_configs"] if job["job_name"] == "rung"]
    [lookup] = scrape["dns_sd_configs"]

    assert sorted(lookup["names"]) == sorted((*SERVICES, "agent"))
    assert lookup["port"] == 9464


def test_prometheus_takes_its_configuration() -> None:
    """Prometheus reads the configuration and the rules that it names."""
    run(tool("promtool"), "check", "config", _FOLDER / "prometheus.yml")


def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    """Prometheus evaluates the rules over made-up series as `alerts_test.yml` says."""
    run(tool("promtool"), "test", "rules", Path(__file__).with_name("alerts_test.yml"))
