"""Secrets of experiment files: encrypted before anything is stored, and named on record.

The configuration on record refers to them in `internal`, which no file can set:

    internal: {secrets: {object, digest}, workspace, named: [NAME, …]}

`secrets` is what was taken out of the file itself; `named` are secrets of the workspace.
"""

import asyncio
import json
from typing import Any, Final

from rung.api import ProblemItem
from rung.config.problem import InvalidExperimentFile
from rung.config.secret import separate, text_without
from rung.config.sections.secrets import Secrets
from rung.config.yaml import document
from rung.gateway.access.authorization import Access
from rung.gateway.access.place import Names, Place
from rung.gateway.context import Context
from rung.gateway.problem import Problem
from rung.secrets.secret_store import (
    WORKSPACES,
    SecretStore,
    experiment_object,
)
from rung.secrets.values import ExperimentSecrets, SecretValue, decode, encode, restored

INTERNAL: Final = "internal"
USE: Final = "secret.use"
"""The permission to have trials get secrets of a workspace."""


async def taken_out(
    context: Context, experiment_id: str, workspace_id: str, fields: dict[str, Any], source: str
) -> tuple[dict[str, Any], str]:
    """Return a configuration and its file without secrets, once these are stored encrypted.

    Args:
        context: of the gateway.
        experiment_id: whose configuration it is.
        workspace_id: whose secrets it names.
        fields: the configuration with defaults filled in.
        source: the file as its author wrote it.

    Raises:
        Problem: there is no key to encrypt them.
        RungError: the object store or the service of the key does not answer.
    """
    left, values = separate(fields)
    internal: dict[str, Any] = {}
    if values:
        found = ExperimentSecrets(_values(values), _of_source(source))
        store, name = context.need_secrets(), experiment_object(experiment_id)
        reference = await asyncio.to_thread(store.put, name, encode(found))
        internal["secrets"] = {"object": reference.name, "digest": reference.digest}
        source = text_without(source)
    section = fields.get("secrets")
    if section and (section["environment"] or section["files"]):
        internal["workspace"] = workspace_id
    return ({**left, INTERNAL: internal} if internal else left), source


async def check_named(
    context: Context, access: Access, place: Place, section: Secrets | None
) -> None:
    """Refuse a file that names secrets which its workspace does not have, or which none may use.

    Raises:
        Problem: it does.
    """
    names = [] if section is None else section.names()
    if not names:
        return
    workspace = Names(access).workspace(place.workspace_id)
    access.check(USE, place.workspace_id, f"a file with secrets of workspace {workspace}")
    there = await asyncio.to_thread(names_in, context.need_secrets(), place.workspace_id)
    missing = [name for name in names if name not in there]
    if missing:
        has = f"it has {', '.join(there[:8])}" if there else "it has none"
        items = [
            ProblemItem(
                path="secrets",
                message=f"there is no secret {name} in workspace {workspace}; {has}"
                f" (`rung secret set {name} --workspace {workspace}`)",
            )
            for name in missing
        ]
        lines = "; ".join(f"{item.path}: {item.message}" for item in items[:3])
        raise Problem(
            422, "invalid-experiment", f"the experiment file has a problem: {lines}", errors=items
        )


def names_in(store: SecretStore, workspace: str) -> list[str]:
    """Return the names of a workspace's secrets, sorted."""
    prefix = f"{WORKSPACES}{workspace}/"
    return [
        name.removeprefix(prefix).removesuffix(".json") for name in sorted(store.names(prefix))
    ]


async def same_file(context: Context, config: dict[str, Any], kept: str, given: str) -> bool:
    """Return whether a file is the one that an experiment was submitted with, secrets included."""
    if kept == given:
        return True
    try:
        values = _of_source(given)
        if not values or text_without(given) != kept:
            return False
    except InvalidExperimentFile:
        return False
    first = await _opened(context, config)
    return first is not None and first.source == values


async def source_of(context: Context, config: dict[str, Any], source: str) -> str:
    """Return an experiment's file with its secrets, for one that is made from it here.

    Raises:
        RungError: they cannot be decrypted.
    """
    found = await _opened(context, config)
    if found is None or not found.source:
        return source
    tree = document.read(source).tree
    return json.dumps(restored(tree, found.source), ensure_ascii=False)


async def _opened(context: Context, config: dict[str, Any]) -> ExperimentSecrets | None:
    reference = (config.get(INTERNAL) or {}).get("secrets")
    if reference is None:
        return None
    store = context.need_secrets()
    data = await asyncio.to_thread(store.get, reference["object"], reference["digest"])
    return decode(data)


def _of_source(source: str) -> list[SecretValue]:
    return _values(separate(document.read(source).tree).values)


def _values(found: list[tuple[tuple[str | int, ...], Any]]) -> list[SecretValue]:
    return [SecretValue(path, value) for path, value in found]
