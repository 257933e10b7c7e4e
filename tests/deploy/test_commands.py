"""What compose file and chart tell the services: options that there are."""

import click
import pytest
import yaml

from deploy.place import DEPLOY, SERVICES
from deploy.rendered import EXAMPLES, containers, render
from rung.cli.group import rung


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def _command(words: list[str]) -> click.Command:
    found: click.Command = rung
    for word in words:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, words
        found = inner
    return found


def _known(container: str, arguments: list[str]) -> set[str]:
    if container not in {*SERVICES, "agent"}:
        return _options(_command([word for word in arguments[:2] if not word.startswith("-")]))
    return _options(_command(["service", container]))  # as the images' entry points have it


def _given(arguments: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in arguments if word.startswith("--")}


@pytest.mark.parametrize("name", [*SERVICES, "agent", "cluster-init", "migrate"])
def test_the_compose_file_gives_options_that_there_are(name: str) -> None:
    """A container that is told something unknown would end at once, again and again."""
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    arguments = compose["services"][name]["command"]

    assert _given(arguments) <= _known(name, arguments)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_chart_gives_options_that_there_are(example: str) -> None:
    """A pod that is told something unknown would end at once, again and again."""
    done = render(example)
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]

    for container in containers(objects):
        assert _given(container["args"]) <= _known(container["name"], container["args"])
