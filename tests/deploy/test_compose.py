"""`deploy/compose`: the cluster on one machine.

No container is started here: that takes a daemon and a registry. What the files say is held
against itself, the images and the options of the services.
"""

import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest
import yaml

from deploy.dockerfile import stages
from deploy.place import DEPLOY, ROOT, SERVICES

_FOLDER: Final = DEPLOY / "compose"
_OURS: Final = (*SERVICES, "agent", "cluster-init", "migrate")


class _Loader(yaml.SafeLoader):
    """Knows Compose's own tags."""


def _overridden(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return loader.construct_sequence(node)


_Loader.add_constructor("!override", _overridden)


def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((_FOLDER / name).read_text(), _Loader)  # noqa: S506 - a safe loader with one tag more
    return found


_COMPOSE: Final = _load("compose.yaml")
_SERVICES: Final[dict[str, dict[str, Any]]] = _COMPOSE["services"]
_each_service = pytest.mark.parametrize("name", _SERVICES)


def _ends(service: dict[str, Any]) -> bool:
    return str(service.get("restart", "")).startswith("on-failure")


def _probed(name: str) -> bool:
    build = _SERVICES[name].get("build")
    if build is None:
        return False
    found = stages(ROOT / build["dockerfile"])
    stage = found[build["target"]] if "target" in build else list(found.values())[-1]
    return stage.of("HEALTHCHECK")[-1] != "NONE"


def test_every_service_of_rung_is_there() -> None:
    """The file is the whole cluster; who decides does so in two replicas."""
    assert set(SERVICES) | {"agent"} <= set(_SERVICES)
    replicas = {name: _SERVICES[name].get("deploy", {}).get("replicas", 1) for name in SERVICES}
    assert (replicas["searcher"], replicas["scheduler"]) == (2, 2)


def test_nothing_listens_but_gateway_and_grafana_on_loopback() -> None:
    """Kafka, ClickHouse and MinIO have no password worth showing to a network."""
    ports = {name: service["ports"] for name, service in _SERVICES.items() if "ports" in service}

    assert set(ports) == {"gateway", "grafana"}
    assert all(port.startswith("127.0.0.1:") for given in ports.values() for port in given)


@_each_service
def test_a_service_is_known_to_be_well(name: str) -> None:
    """It ends by itself, or says in the file or in its image how to ask it."""
    service = _SERVICES[name]

    assert _ends(service) or "healthcheck" in service or _probed(name)


@_each_service
def test_a_service_waits_for_what_it_needs(name: str) -> None:
    """What it waits for is there, and can come to the state that is waited for."""
    for needed, how in _SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_completed_successfully":
            assert _ends(_SERVICES[needed]), needed
        else:
            assert how["condition"] == "service_healthy"
            assert "healthcheck" in _SERVICES[needed] or _probed(needed), needed


def test_whatever_ends_is_waited_for() -> None:
    """`docker compose up --wait` takes a container that ended for one that failed, otherwise."""
    ending = {name for name, service in _SERVICES.items() if _ends(service)}
    waited_for = {
        needed
        for service in _SERVICES.values()
        for needed, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_completed_successfully"
    }

    assert ending == waited_for == {"bucket", "cluster-init", "migrate"}


@_each_service
def test_a_service_keeps_its_data(name: str) -> None:
    """A volume is declared; a folder of the repository is there, and not written to."""
    for mount in _SERVICES[name].get("volumes", []):
        source, _, rest = mount.partition(":")
        if source.startswith("."):
            assert (_FOLDER / source).exists(), source
            assert rest.endswith(":ro")
        else:
            assert source in _COMPOSE["volumes"]


def test_projections_are_on_a_disk() -> None:
    """They grow with the history, and a tmpfs is memory; the gateway's user may write there."""
    gateway = _SERVICES["gateway"]
    [folder] = [
        word.removeprefix("--projections=")
        for word in gateway["command"]
        if word.startswith("--projections=")
    ]
    [target] = [mount.partition(":")[2] for mount in gateway["volumes"]]
    image = stages(DEPLOY / "images/services.Dockerfile")["gateway"]
    made = [words for words in image.of("RUN") if f" {target}" in words]

    assert Path(folder).is_relative_to(target)
    assert not any(Path(folder).is_relative_to(path) for path in gateway["tmpfs"])
    assert "--owner=rung --group=rung" in made[0]


@_each_service
def test_a_service_is_on_the_networks_it_needs(name: str) -> None:
    """Whoever publishes a port, trains or tells subscribers reaches out; nobody else does."""
    networks = set(_SERVICES[name]["networks"])

    assert _COMPOSE["networks"]["inner"] == {"internal": True}
    assert networks == (
        {"inner", "outer"} if name in {"gateway", "grafana", "agent", "webhooks"} else {"inner"}
    )


@pytest.mark.parametrize("name", _OURS)
def test_a_container_of_ours_can_do_little(name: str) -> None:
    """Nothing to write to but its volume; of root's rights the agent has what parts trials."""
    service = _SERVICES[name]
    root = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (root if name == "agent" else [])
    assert ("--isolation=users" in service["command"]) == (name == "agent")
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", _OURS)
def test_a_secret_is_where_it_is_used_and_nowhere_else(name: str) -> None:
    """What a service is told in its command decides which secrets it has."""
    command = " ".join(_SERVICES[name]["command"])
    variables = _SERVICES[name].get("environment", {})

    assert ("--objects" in command) == ("AWS_SECRET_ACCESS_KEY" in variables)
    assert ("clickhouse://" in command) == ("RUNG_CLICKHOUSE_PASSWORD" in variables)
    assert (name == "gateway") == ("RUNG_TOKEN" in variables)
    assert "$" not in command.replace("${RUNG_SLOTS:-2}", "")


def test_services_agree_on_where_things_are() -> None:
    """One ledger, one bucket, one database; the bucket is the one that is made."""
    words = [w for name in _OURS for w in " ".join(_SERVICES[name]["command"]).split()]
    urls = {w.partition("=")[2] if w.startswith("-") else w for w in words if "://" in w}

    assert urls == {
        "kafka://kafka:9092/rung",
        "s3://rung/rung",
        "clickhouse://rung@clickhouse:9000/rung",
    }
    assert "mc mb --ignore-existing store/rung\n" in _SERVICES["bucket"]["command"][0]
    assert _SERVICES["clickhouse"]["environment"]["CLICKHOUSE_DB"] == "rung"


def test_variables_without_a_value_are_asked_for_in_the_example() -> None:
    """Whoever follows the example has set what the file insists on, and nothing is left over."""
    text = (_FOLDER / "compose.yaml").read_text()
    insisted = set(re.findall(r"(?<!\$)\$\{([A-Z_]+):\?", text))
    optional = set(re.findall(r"(?<!\$)\$\{([A-Z_]+):-", text))
    example = dict(_assignments(_FOLDER / ".env.example"))

    assert insisted <= set(example)
    assert set(example) <= insisted | optional
    assert all(example[name] for name in insisted)


def test_secrets_are_drawn_once(tmp_path: Path) -> None:
    """Each its own, for the owner's eyes; drawing again would lock out the volumes."""
    for name in ("secrets.sh", ".env.example"):
        (tmp_path / name).write_bytes((_FOLDER / name).read_bytes())
    subprocess.run(["sh", tmp_path / "secrets.sh"], check=True, capture_output=True)
    drawn = dict(_assignments(tmp_path / ".env"))
    again = subprocess.run(["sh", tmp_path / "secrets.sh"], check=False, capture_output=True)

    asked = {n for n, value in _assignments(_FOLDER / ".env.example") if value == "drawn"}
    assert len({drawn[name] for name in asked}) == len(asked) == 6
    assert all(re.fullmatch(r"[0-9a-f]{48}", drawn[name]) for name in asked)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert again.returncode == 1
    assert dict(_assignments(tmp_path / ".env")) == drawn


def test_versions_are_said() -> None:
    """Two machines get the same; Kafka is the one that the tests run on."""
    images = {n: s["image"] for n, s in _SERVICES.items() if "build" not in s and n not in _OURS}
    tags = {name: re.sub(r"\$\{[A-Z_]+:-(.*)\}", r"\1", image) for name, image in images.items()}
    pom = ET.parse(DEPLOY / "kafka/pom.xml")  # noqa: S314 - our own file
    [version] = [
        dependency.findtext("{*}version")
        for dependency in pom.iterfind(".//{*}dependency")
        if dependency.findtext("{*}groupId") == "org.apache.kafka"
    ]

    assert all(re.search(r":v?(RELEASE\.)?[0-9][^:]*$", tag) for tag in tags.values()), tags
    assert tags["kafka"] == f"apache/kafka:{version}"


def test_gpus_change_only_what_they_must() -> None:
    """The agent is the same but for its slots, which are then the GPUs."""
    [(name, changed)] = _load("gpu.yaml")["services"].items()
    plain = [word for word in _SERVICES["agent"]["command"] if not word.startswith("--slots")]

    assert name == "agent"
    assert changed["command"] == plain


def _assignments(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name, value
