"""`deploy/helm/rung`: the chart, as it is written.

What it makes of its values is tested in `test_rendered_chart.py`.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft7Validator

from deploy.place import DEPLOY, ROOT, SERVICES

_CHART: Final = DEPLOY / "helm/rung"
_VALUES: Final[dict[str, Any]] = yaml.safe_load((_CHART / "values.yaml").read_text())
_SCHEMA: Final[dict[str, Any]] = json.loads((_CHART / "values.schema.json").read_text())


def test_the_chart_is_of_this_version() -> None:
    """Unless told otherwise it runs the images of the version that it comes with."""
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


def test_values_are_held_to_a_schema() -> None:
    """The chart's own values follow it, and it knows each of them."""
    Draft7Validator.check_schema(_SCHEMA)

    assert [error.message for error in Draft7Validator(_SCHEMA).iter_errors(_VALUES)] == []
    assert set(_SCHEMA["properties"]) == {*_VALUES, "global"}


@pytest.mark.parametrize("file", sorted((_CHART / "ci").iterdir()), ids=lambda path: path.stem)
def test_examples_follow_the_schema(file: Path) -> None:
    """Whoever starts from an example starts from something right."""
    values = yaml.safe_load(file.read_text())
    without_needed = json.loads(json.dumps(_SCHEMA).replace('"required"', '"$comment.required"'))

    assert [error.message for error in Draft7Validator(without_needed).iter_errors(values)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kafka.brokers", "kafka://kafka:9092/rung"),
        ("kafka.securityProtocol", "sasl_ssl"),
        ("kafka.prefix", "a/b"),
        ("objects.url", "https://minio/rung"),
        ("objects.sse", "AES256"),
        ("series.url", "clickhouse://rung:secret@clickhouse:9000/rung"),
        ("secrets.tokn", "x"),
        ("services.searcher.replicas", 0),
        ("services.surcher", {"replicas": 1}),
        ("agents.GPU", {}),
        ("agents.gpu.gpu", 8),
        ("agentDefaults.folder.type", "pvc"),
        ("gateway.hostNames", ["https://rung.example.org"]),
        ("objects.credentials", "role"),
        ("kafka.acls", "User:rung"),
        ("kafka.components", {"surcher": {}}),
        ("serviceAccount.components", {"surcher": {"annotations": {}}}),
        ("gateway.ingress.annotations", {"nginx.org/proxy-read-timeout": 3600}),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: object) -> None:
    """Helm says so before anything is changed."""
    values = json.loads(json.dumps(_VALUES))
    *way, last = path.split(".")
    at = values
    for key in way:
        at = at[key]
    at[last] = value

    assert not Draft7Validator(_SCHEMA).is_valid(values)


def test_every_service_has_values() -> None:
    """A service without an entry would not be deployed."""
    assert set(_VALUES["services"]) == set(SERVICES)


def test_every_value_is_used() -> None:
    """A value that no template reads would promise something."""
    templates = "\n".join(path.read_text() for path in (_CHART / "templates").iterdir())
    unused = [path for path in _leaves(_VALUES) if path.rpartition(".")[2] not in templates]

    assert unused == []


def test_alerts_and_dashboard_are_those_of_the_repository() -> None:
    """Helm packs what these links lead to."""
    for name, target in (("alerts.yml", "prometheus"), ("rung.json", "grafana")):
        link = _CHART / "files" / name
        assert link.is_symlink()
        assert link.resolve() == DEPLOY / target / name


def _leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        if path in {"services.", "agents."} or key in {"resources", "labels", "nodeSelector"}:
            continue  # keys are names, or Kubernetes' own
        if isinstance(value, dict) and value and key != "annotations":
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"
