"""The table of rights: it is whole, its roles are what they are called, and the page shows it."""

import itertools
from pathlib import Path

import pytest

from rung import rights
from rung.rights.__main__ import rights_page

_DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    """`docs/RIGHTS.md` is what the table says (`make docs` writes it)."""
    assert rights_page() == (_DOCS / "RIGHTS.md").read_text()


def test_each_permission_is_an_object_and_a_verb_and_somebody_has_it() -> None:
    """Names are read aloud; at least the cluster's administrator has each."""
    for name in rights.PERMISSIONS:
        thing, dot, verb = name.partition(".")
        assert (thing.isalpha(), dot, verb.isalpha()) == (True, ".", True)
        assert rights.roles_with(name)[-1] == rights.ADMINISTRATOR


def test_roles_have_known_permissions_only() -> None:
    """A misspelt permission would be a right that is never held."""
    for role in rights.ROLES.values():
        assert role.permissions <= rights.ALL
    assert rights.EVERYBODY <= rights.ALL - rights.OF_WORKSPACES


def test_roles_grow_as_their_names_say() -> None:
    """Who edits may see, who administers may edit, and the cluster's administrator may all."""
    grown = ["viewer", "editor-restricted", "editor", "workspace-admin", "cluster-admin"]
    sets = [rights.ROLES[name].permissions for name in grown]
    assert all(less < more for less, more in itertools.pairwise(sets))
    assert sets[-1] == rights.ALL


def test_an_auditor_sees_all_and_changes_nothing() -> None:
    """Each permission of the auditor's is one to see, and there is none to see that it lacks."""
    seeing = {name for name in rights.ALL if name.endswith(".view")} | {"checkpoint.download"}
    assert rights.ROLES["auditor"].permissions == seeing


@pytest.mark.parametrize("role", rights.ROLES)
def test_a_role_in_a_workspace_gives_nothing_of_the_cluster(role: str) -> None:
    """There it is cut down to what there is in a workspace; in the cluster it is whole."""
    assert rights.permissions_of(role, in_cluster=False) <= rights.OF_WORKSPACES
    assert rights.permissions_of(role, in_cluster=True) == rights.ROLES[role].permissions


def test_an_unknown_role_gives_nothing() -> None:
    """A newer release may have written a role that this one does not know."""
    assert rights.permissions_of("emperor", in_cluster=True) == frozenset()


def test_the_least_role_comes_first() -> None:
    """A message that names the roles with a permission begins with the one to ask for."""
    assert rights.roles_with("experiment.edit")[0] == "editor-restricted"
    assert rights.roles_with("no.such") == ()
    assert rights.missing_from(["experiment.edit", "no.such"]) == ["no.such"]
