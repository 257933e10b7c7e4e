"""Policies and templates of the directory, applied to experiment files."""

import dataclasses
from typing import Any

from rung import api
from rung.api import ProblemItem
from rung.config import ExperimentConfig, InvalidExperimentFile
from rung.config.policy import (
    POOL_PATH,
    DefaultPool,
    Policy,
    Resolved,
    Scope,
    Template,
    check_values,
    resolve,
)
from rung.config.problem import dotted
from rung.config.yaml import document
from rung.gateway.access.place import Place
from rung.gateway.context import Context
from rung.gateway.directory import state as states
from rung.gateway.directory.state import State
from rung.gateway.experiment_file.file_problems import load_file, refused, refused_file
from rung.gateway.feasibility import unknown_pool
from rung.gateway.problem import Problem, not_found
from rung.gateway.projections.experiment import Experiment
from rung.gateway.serializers.experiments import resources


def place_named(text: bytes | str) -> tuple[str | None, str | None]:
    """Return the workspace and the project that a file names, before it is merged or checked.

    No template and no policy names them.

    Raises:
        Problem: the file cannot be read.
    """
    try:
        tree = document.read(text).tree
    except InvalidExperimentFile as error:
        raise refused_file(error) from None
    workspace, project = tree.get("workspace"), tree.get("project")
    return (
        workspace if isinstance(workspace, str) else None,
        project if isinstance(project, str) else None,
    )


def in_force(state: State, place: Place) -> list[Policy]:
    """Return the policies that hold for a project, and those of all pools."""
    return [
        Policy(it.name, it.kind, scope_of(state, it), it.document, _name(state, it.by))
        for it in state.policies.values()
        if it.workspace_id in {None, place.workspace_id}
        and it.project_id in {None, place.project_id}
    ]


def check_resources(context: Context, experiment: Experiment, wanted: api.ResourcesWanted) -> None:
    """Refuse resources that a policy does not allow where an experiment is now.

    In another pool the policies of that hold, also for what stays as it is.

    Raises:
        Problem: it names the policy, and who set it.
    """
    state, now = context.directory.state, resources(experiment)
    pool = wanted.pool or now.pool
    pairs = {
        "resource_pool": (wanted.pool, now.pool),
        "priority": (wanted.priority, now.priority),
        "weight": (wanted.weight, now.weight),
        "max_slots": (wanted.max_slots, now.max_slots),
        "max_slot_hours": (wanted.max_slot_hours, now.max_slot_hours),
    }
    values: dict[tuple[str | int, ...], Any] = {
        ("resources", name): (before if asked is None else asked) or None  # 0 is no limit
        for name, (asked, before) in pairs.items()
        if asked is not None or pool != now.pool
    }
    project = state.projects.get(experiment.project_id)
    home = experiment.workspace_id if project is None else project.workspace_id
    policies = in_force(state, Place(home, experiment.project_id))
    problems = check_values(values, policies=policies, pool=pool)
    if problems:
        items = [ProblemItem(path=it.path, message=it.message, value=it.value) for it in problems]
        lines = "; ".join(f"{it.path}: {it.message}" for it in problems)
        raise Problem(422, "invalid-resources", lines, errors=items)


def scope_of(state: State, policy: states.Policy) -> Scope:
    """Return where a policy holds, by name."""
    if policy.pool is not None:
        return Scope("pool", policy.pool)
    if policy.project_id is not None:
        return Scope("project", state.projects[policy.project_id].name)
    if policy.workspace_id is not None:
        return Scope("workspace", state.workspaces[policy.workspace_id].name)
    return Scope()


def template_of(context: Context, workspace_id: str, name: str) -> Template:
    """Return a template of a workspace, by name or id.

    Raises:
        Problem: there is none.
    """
    directory = context.directory
    known = directory.id_of(f"{states.Template.TABLE}/{workspace_id}", name)
    found = directory.state.templates.get(known or name)
    if found is None or found.workspace_id != workspace_id:
        raise not_found("template", name, "`rung template list` lists those of a workspace")
    return Template(found.name, found.document, _name(directory.state, found.by))


def resolved(
    context: Context,
    text: bytes | str,
    place: Place,
    *,
    template: Template | None = None,
) -> tuple[Resolved, ExperimentConfig]:
    """Return a file with template and policies, and its configuration.

    Args:
        context: of the gateway.
        text: of the file.
        place: where it is submitted to.
        template: of that workspace, which it is merged with.

    Raises:
        Problem: it cannot be run, or exceeds a constraint; or its workspace's default pool does
            not exist.
    """
    state = context.directory.state
    policies = in_force(state, place)
    workspace = state.workspaces.get(place.workspace_id)
    pool = None
    if workspace is not None and workspace.default_pool:
        pool = DefaultPool(workspace.default_pool, workspace.name)
    alone = template is None and not policies and pool is None
    config = load_file(text) if alone else None
    try:
        found = resolve(text, template=template, policies=policies, default_pool=pool)
    except InvalidExperimentFile as error:
        raise refused_file(error) from None
    if config is None:
        config = load_file(found.text(), found.lines())
    if pool is not None and found.origin(POOL_PATH).kind == "default pool":
        lack = unknown_pool(context.models, pool.pool)
        if lack is not None:
            message = f"is the default pool of workspace {pool.workspace}; {lack}"
            raise refused([ProblemItem(path=dotted(POOL_PATH), message=message, value=pool.pool)])
    return found, dataclasses.replace(config, warnings=[*found.warnings, *config.warnings])


def _name(state: State, user_id: str) -> str:
    user = state.users.get(user_id)
    return user_id if user is None else user.name
