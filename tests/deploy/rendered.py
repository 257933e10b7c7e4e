"""What Helm makes of the chart and a file of values."""

import subprocess
from typing import Any, Final

from deploy.place import DEPLOY, tool

CHART: Final = DEPLOY / "helm/rung"
KUBERNETES: Final = ("1.27", "1.37")
"""Versions whose schemas the objects follow: the oldest that the chart takes, and the newest."""
EXAMPLES: Final = {"minimal": 1, "full": 2}
"""Files of values, and how many DaemonSets of agents each has."""

Objects = list[dict[str, Any]]


def render(example: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Have Helm render the chart with a file of values, and more options."""
    command = [tool("helm"), "template", "research", str(CHART), "--namespace", "lab"]
    values = str(CHART / f"ci/{example}-values.yaml")
    version = f"--kube-version={KUBERNETES[1]}"
    return subprocess.run(
        [*command, "--values", values, version, *options],
        capture_output=True,
        text=True,
        check=False,
    )


def of(objects: Objects, kind: str) -> Objects:
    """Return the objects of a kind."""
    return [item for item in objects if item["kind"] == kind]


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    """Return the templates of pods by the name of what makes the pods."""
    return {
        item["metadata"]["name"]: item["spec"]["template"]
        for item in objects
        if item["kind"] in {"Deployment", "DaemonSet", "Job"}
    }


def containers(objects: Objects) -> list[dict[str, Any]]:
    """Return all containers but those that only prepare."""
    return [c for pod in pods(objects).values() for c in pod["spec"]["containers"]]
