"""Prints the table of rights as a page: `python -m rung.rights`."""

import sys
from typing import Final

from rung.rights import EVERYBODY, PERMISSIONS, ROLES, Place

_TITLE: Final = """# Rights

Made from `foundation/rung/rights` by `make docs`; a test holds it against that table.

A **role** is given to a user, a service account or a group, in one workspace or in the cluster;
in the cluster it holds in all workspaces, also in those to come. Rights of several roles add up.
The owner of a workspace is its `workspace-admin`. A token has at most the rights of its user, less
what its scope and its workspace leave out. Nobody can give a right that he does not have. What one
may not see is answered with 404, as if it did not exist; what one sees and may not change with
403, naming the permission and the roles that have it.

Who has `model.view` and `checkpoint.download` in the workspace of a model downloads the
checkpoints of its versions, wherever they were trained ([MODELS](MODELS.md)). To register one
takes `model.edit` there, and `checkpoint.download` where it was trained.
"""
_PLACES: Final[dict[Place, str]] = {
    "workspace": "In a workspace",
    "cluster": "In the cluster",
}


def rights_page() -> str:
    """Return the page, in Markdown."""
    names = list(ROLES)
    lines = [_TITLE, "## Roles", "", "| role | who has it | assigned in |", "| --- | --- | --- |"]
    lines += [f"| `{it.name}` | {it.text} | {' or '.join(it.places)} |" for it in ROLES.values()]
    for place, title in _PLACES.items():
        lines += ["", f"## {title}", "", f"| permission | allows to | {' | '.join(names)} |"]
        lines.append("| --- | --- |" + " :-: |" * len(names))
        for it in PERMISSIONS.values():
            if it.place != place:
                continue
            cells = ["✓" if it.name in ROLES[name].permissions else "" for name in names]
            lines.append(f"| `{it.name}` | {it.text} | {' | '.join(cells)} |")
    everybody = ", ".join(f"`{name}`" for name in sorted(EVERYBODY))
    lines += ["", f"Without any role every active user has {everybody}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(rights_page())
