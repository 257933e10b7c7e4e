"""What is in the directory: what `client.users`, `client.secrets()` and the others do."""

import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from rung import api
from rung.client._error import ServerFailed
from rung.client._transport import Transport

A = TypeVar("A", bound=Struct)
B = TypeVar("B", bound=Struct)
T = TypeVar("T")

Names = list[str] | None
"""Ids or names; None: none."""
_PAGE: Final = 500


class _Page(Protocol):
    """A page of a list."""

    items: Any
    next_cursor: str | None


class Things(Generic[A]):
    """All of one kind; each is named by its id or its name."""

    def __init__(self, transport: Transport, path: str, kind: type[A], page: type[Any]) -> None:
        self._transport = transport
        self._path = path
        self._kind = kind
        self._page = page

    async def list(self, **query: object) -> list[A]:
        """Return all that one may see, by id; `query` as the API documents it."""
        found: list[A] = []
        cursor: str | None = None
        while True:
            asked = {**_texts(query), "limit": _PAGE, "cursor": cursor}
            page: _Page = _read(await self._transport.get(self._path, asked), self._page)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def get(self, name: str) -> A:
        """Return one.

        Raises:
            NotFound: there is none that one may see.
        """
        return _read(await self._transport.get(self._of(name)), self._kind)

    async def create(self, *, key: str | None = None, **fields: object) -> A:
        """Create one; `key` is the idempotency key.

        Raises:
            ClientError: it is refused; the message names the field.
        """
        return await self._post(self._path, fields, self._kind, key=key)

    async def change(
        self, name: str, /, *, version: int | None = None, key: str | None = None, **fields: object
    ) -> A:
        """Change the given fields of one.

        Args:
            name: its id or its name.
            version: the one that was seen; where another change came first it is refused.
            key: the idempotency key.
            fields: those that change.
        """
        return await self._post(self._of(name), fields, self._kind, version=version, key=key)

    async def _act(self, name: str, action: str, fields: Mapping[str, object] | None = None) -> A:
        return await self._post(f"{self._of(name)}/{action}", fields, self._kind)

    async def _delete(self, name: str) -> api.Removed:
        return await self._post(f"{self._of(name)}/delete", None, api.Removed)

    async def _post(
        self,
        path: str,
        fields: Mapping[str, object] | None,
        kind: type[B],
        *,
        version: int | None = None,
        key: str | None = None,
    ) -> B:
        headers = {"Content-Type": "application/json"}
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        body = None if fields is None else msgspec.json.encode(fields)
        answer = await self._transport.post(path, body, headers=headers, key=key)
        return _read(answer, kind)

    def _of(self, name: str) -> str:
        return f"{self._path}/{quote(name, safe='')}"


class Inputs(Things[A]):
    """Secrets, templates or policies: one that is set anew takes the place of the one before."""

    async def set(self, name: str, **fields: object) -> A:
        """Set one, new or in place of the one with that name.

        Raises:
            ClientError: it is refused; the message names the field.
        """
        return await self._post(self._path, {"name": name, **fields}, self._kind)

    async def delete(self, name: str) -> api.Removed:
        """Remove one."""
        return await self._delete(name)


class Users(Things[api.User]):
    """Users, or service accounts."""

    async def deactivate(self, name: str) -> api.User:
        """Deactivate one, and revoke all tokens and sessions."""
        return await self._act(name, "deactivate")

    async def activate(self, name: str) -> api.User:
        """Activate one again."""
        return await self._act(name, "activate")


class Groups(Things[api.Group]):
    """Groups of users."""

    async def change_members(
        self, name: str, *, add: Names = None, remove: Names = None
    ) -> api.Group:
        """Change who is in a group: ids or names of users."""
        return await self._act(name, "members", {"add": add or [], "remove": remove or []})

    async def delete(self, name: str) -> api.Removed:
        """Delete a group, and take the roles that it was given."""
        return await self._delete(name)


class Workspaces(Things[api.Workspace]):
    """Workspaces."""

    async def archive(self, name: str) -> api.Workspace:
        """Close one to anything new."""
        return await self._act(name, "archive")

    async def unarchive(self, name: str) -> api.Workspace:
        """Open one again."""
        return await self._act(name, "unarchive")

    async def usage(
        self, name: str | None = None, *, since: str | None = None, by: str | None = None
    ) -> api.UsageReport:
        """Return what one workspace uses and used, or all that one sees.

        Args:
            name: its id or its name; None: all.
            since: where the period begins: `30d` ago, or a date; None: at the beginning.
            by: `project` or `owner`, or without a name `workspace`.
        """
        path = "/usage" if name is None else f"{self._of(name)}/usage"
        asked = _texts({"since": since, "by": by})
        return _read(await self._transport.get(path, asked), api.UsageReport)


class Projects(Things[api.Project]):
    """Projects, named by id or as WORKSPACE/PROJECT."""

    async def archive(self, name: str) -> api.Project:
        """Close one to anything new."""
        return await self._act(name, "archive")

    async def unarchive(self, name: str) -> api.Project:
        """Open one again."""
        return await self._act(name, "unarchive")

    async def move(self, name: str, workspace: str) -> api.Project:
        """Move one to another workspace."""
        return await self._act(name, "move", {"workspace": workspace})


class Webhooks(Things[api.Webhook]):
    """Webhooks, named by id, by name, or as WORKSPACE/NAME."""

    async def rotate(self, name: str) -> api.Webhook:
        """Draw another key that signs deliveries; the answer has it."""
        return await self._act(name, "rotate")

    async def activate(self, name: str) -> api.Webhook:
        """Switch one on."""
        return await self._act(name, "activate")

    async def deactivate(self, name: str) -> api.Webhook:
        """Switch one off; what waits for it is dropped."""
        return await self._act(name, "deactivate")

    async def delete(self, name: str) -> api.Removed:
        """Remove one."""
        return await self._delete(name)

    async def test(self, name: str) -> api.DeliveryAsked:
        """Deliver a test event; `deliveries` tells how that went."""
        return await self._post(f"{self._of(name)}/test", None, api.DeliveryAsked)

    async def deliveries(self, name: str, *, limit: int = 100) -> list[api.Delivery]:
        """Return the newest of what one was told, at most so many."""
        path = f"{self._of(name)}/deliveries"
        found: list[api.Delivery] = []
        cursor: str | None = None
        while len(found) < limit:
            query = {"limit": min(_PAGE, limit - len(found)), "cursor": cursor}
            page = _read(await self._transport.get(path, query), api.DeliveryList)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def redeliver(self, name: str, delivery: str) -> api.DeliveryAsked:
        """Deliver something again, or now where it waits for its next attempt."""
        path = f"{self._of(name)}/deliveries/{quote(delivery, safe='')}/redeliver"
        return await self._post(path, None, api.DeliveryAsked)


class Models(Things[api.Model]):
    """Registered models, named by id, by name, or as WORKSPACE/NAME."""

    async def archive(self, name: str) -> api.Model:
        """Close one to changes and new versions."""
        return await self._act(name, "archive")

    async def unarchive(self, name: str) -> api.Model:
        """Open one again."""
        return await self._act(name, "unarchive")

    async def move(self, name: str, workspace: str) -> api.Model:
        """Move one to another workspace, with its versions."""
        return await self._act(name, "move", {"workspace": workspace})

    async def delete(self, name: str) -> api.Removed:
        """Delete one with its versions; their checkpoints may be deleted from then on."""
        return await self._delete(name)

    async def versions(self, name: str, *, label: str | None = None) -> list[api.ModelVersion]:
        """Return the versions of one, the newest first.

        Args:
            name: of the model.
            label: only those with this label.
        """
        of = Things(self._transport, self._versions(name), api.ModelVersion, api.ModelVersionList)
        return await of.list(label=label)

    async def version(self, name: str, number: int | None = None) -> api.ModelVersion:
        """Return a version of one by its number, the newest if none is given."""
        path = self._version(name, number)
        return _read(await self._transport.get(path), api.ModelVersion)

    async def register(
        self, model: str, checkpoint: str, /, *, key: str | None = None, **fields: object
    ) -> api.ModelVersion:
        """Register a stored checkpoint as the next version of one.

        Args:
            model: its id or its name.
            checkpoint: its id.
            key: the idempotency key.
            fields: `name`, `notes`, `labels` of the version.

        Raises:
            ClientError: it is refused; the message says why.
        """
        wanted = {"checkpoint": checkpoint, **fields}
        return await self._post(self._versions(model), wanted, api.ModelVersion, key=key)

    async def change_version(
        self, model: str, number: int, /, *, version: int | None = None, **fields: object
    ) -> api.ModelVersion:
        """Change the name, notes or labels of a version.

        Args:
            model: its id or its name.
            number: of the version.
            version: the one of its ETag that was seen.
            fields: those that change.
        """
        path = self._version(model, number)
        return await self._post(path, fields, api.ModelVersion, version=version)

    async def delete_version(self, name: str, number: int) -> api.Removed:
        """Delete a version; its checkpoint may be deleted from then on."""
        return await self._post(f"{self._version(name, number)}/delete", None, api.Removed)

    async def download(
        self, name: str, number: int | None, folder: str | os.PathLike[str]
    ) -> api.CheckpointDetail:
        """Write the files of a version to a new folder, each checked against its digest.

        Args:
            name: of the model.
            number: of the version; None: the newest.
            folder: new, or empty.

        Raises:
            NotFound: there is no such version.
            ClientError: the folder is in use, the connection broke, or something is damaged.
        """
        from rung.client._download import check_listed, download  # noqa: PLC0415 - 20 ms

        path = self._version(name, (await self.version(name, number)).number)
        answer = await self._transport.get(f"{path}/checkpoint")
        checkpoint = _read(answer, api.CheckpointDetail)
        await check_listed(self._transport, checkpoint, path=path)
        await download(self._transport, checkpoint, Path(folder), path=path)
        return checkpoint

    def _versions(self, name: str) -> str:
        return f"{self._of(name)}/versions"

    def _version(self, name: str, number: int | None) -> str:
        return f"{self._versions(name)}/{'newest' if number is None else number}"


class Assignments(Things[api.Assignment]):
    """Who has which role."""

    async def delete(self, name: str) -> api.Removed:
        """Take a role away."""
        return await self._delete(name)


class DirectoryClient:
    """What a client has of the directory."""

    def __init__(self, transport: Transport) -> None:
        """Prepare what sends requests."""
        self.users: Final = Users(transport, "/users", api.User, api.UserList)
        self.service_accounts: Final = Users(
            transport, "/service-accounts", api.User, api.UserList
        )
        self.groups: Final = Groups(transport, "/groups", api.Group, api.GroupList)
        self.workspaces: Final = Workspaces(
            transport, "/workspaces", api.Workspace, api.WorkspaceList
        )
        self.projects: Final = Projects(transport, "/projects", api.Project, api.ProjectList)
        self.assignments: Final = Assignments(
            transport, "/assignments", api.Assignment, api.AssignmentList
        )
        self.webhooks: Final = Webhooks(transport, "/webhooks", api.Webhook, api.WebhookList)
        self.models: Final = Models(transport, "/models", api.Model, api.ModelList)
        self._transport = transport

    async def resolve(self, source: str, **fields: object) -> api.ResolvedConfig:
        """Return what an experiment file becomes, and where each value comes from."""
        return await self.workspaces._post(  # noqa: SLF001 - the same module
            "/config/resolve", {"source": source, **fields}, api.ResolvedConfig
        )

    async def roles(self) -> list[api.Role]:
        """Return the roles, and what each may."""
        return _read(await self._transport.get("/roles"), api.RoleList).items


class _Run(Protocol):
    """Runs a coroutine until it returns."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class PlainThings(Generic[A]):
    """`Things` with plain methods."""

    def __init__(self, of: Things[A], run: _Run) -> None:
        self._things = of
        self._run = run

    def list(self, **query: object) -> list[A]:
        """Return all that one may see, by id; `query` as the API documents it."""
        return self._run(self._things.list(**query))

    def get(self, name: str) -> A:
        """Return one, by its id or its name.

        Raises:
            NotFound: there is none that one may see.
        """
        return self._run(self._things.get(name))

    def create(self, *, key: str | None = None, **fields: object) -> A:
        """Create one; `key` is the idempotency key.

        Raises:
            ClientError: it is refused; the message names the field.
        """
        return self._run(self._things.create(key=key, **fields))

    def change(
        self, name: str, /, *, version: int | None = None, key: str | None = None, **fields: object
    ) -> A:
        """Change the given fields of one, as `Things.change` does."""
        return self._run(self._things.change(name, version=version, key=key, **fields))


class PlainUsers(PlainThings[api.User]):
    """`Users` with plain methods."""

    def __init__(self, of: Users, run: _Run) -> None:
        super().__init__(of, run)
        self._users = of

    def deactivate(self, name: str) -> api.User:
        """Deactivate one, and revoke all tokens and sessions."""
        return self._run(self._users.deactivate(name))

    def activate(self, name: str) -> api.User:
        """Activate one again."""
        return self._run(self._users.activate(name))


class PlainGroups(PlainThings[api.Group]):
    """`Groups` with plain methods."""

    def __init__(self, of: Groups, run: _Run) -> None:
        super().__init__(of, run)
        self._groups = of

    def change_members(self, name: str, *, add: Names = None, remove: Names = None) -> api.Group:
        """Change who is in a group: ids or names of users."""
        return self._run(self._groups.change_members(name, add=add, remove=remove))

    def delete(self, name: str) -> api.Removed:
        """Delete a group, and take the roles that it was given."""
        return self._run(self._groups.delete(name))


class PlainWorkspaces(PlainThings[api.Workspace]):
    """`Workspaces` with plain methods."""

    def __init__(self, of: Workspaces, run: _Run) -> None:
        super().__init__(of, run)
        self._workspaces = of

    def archive(self, name: str) -> api.Workspace:
        """Close one to anything new."""
        return self._run(self._workspaces.archive(name))

    def unarchive(self, name: str) -> api.Workspace:
        """Open one again."""
        return self._run(self._workspaces.unarchive(name))

    def usage(
        self, name: str | None = None, *, since: str | None = None, by: str | None = None
    ) -> api.UsageReport:
        """Return what one workspace uses and used, or all, as `Workspaces.usage` does."""
        return self._run(self._workspaces.usage(name, since=since, by=by))


class PlainProjects(PlainThings[api.Project]):
    """`Projects` with plain methods."""

    def __init__(self, of: Projects, run: _Run) -> None:
        super().__init__(of, run)
        self._projects = of

    def archive(self, name: str) -> api.Project:
        """Close one to anything new."""
        return self._run(self._projects.archive(name))

    def unarchive(self, name: str) -> api.Project:
        """Open one again."""
        return self._run(self._projects.unarchive(name))

    def move(self, name: str, workspace: str) -> api.Project:
        """Move one to another workspace."""
        return self._run(self._projects.move(name, workspace))


class PlainWebhooks(PlainThings[api.Webhook]):
    """`Webhooks` with plain methods."""

    def __init__(self, of: Webhooks, run: _Run) -> None:
        super().__init__(of, run)
        self._webhooks = of

    def rotate(self, name: str) -> api.Webhook:
        """Draw another key that signs deliveries; the answer has it."""
        return self._run(self._webhooks.rotate(name))

    def activate(self, name: str) -> api.Webhook:
        """Switch one on."""
        return self._run(self._webhooks.activate(name))

    def deactivate(self, name: str) -> api.Webhook:
        """Switch one off; what waits for it is dropped."""
        return self._run(self._webhooks.deactivate(name))

    def delete(self, name: str) -> api.Removed:
        """Remove one."""
        return self._run(self._webhooks.delete(name))

    def test(self, name: str) -> api.DeliveryAsked:
        """Deliver a test event; `deliveries` tells how that went."""
        return self._run(self._webhooks.test(name))

    def deliveries(self, name: str, *, limit: int = 100) -> list[api.Delivery]:
        """Return the newest of what one was told, at most so many."""
        return self._run(self._webhooks.deliveries(name, limit=limit))

    def redeliver(self, name: str, delivery: str) -> api.DeliveryAsked:
        """Deliver something again, or now where it waits for its next attempt."""
        return self._run(self._webhooks.redeliver(name, delivery))


class PlainModels(PlainThings[api.Model]):
    """`Models` with plain methods."""

    def __init__(self, of: Models, run: _Run) -> None:
        super().__init__(of, run)
        self._models = of

    def archive(self, name: str) -> api.Model:
        """Close one to changes and new versions."""
        return self._run(self._models.archive(name))

    def unarchive(self, name: str) -> api.Model:
        """Open one again."""
        return self._run(self._models.unarchive(name))

    def move(self, name: str, workspace: str) -> api.Model:
        """Move one to another workspace, with its versions."""
        return self._run(self._models.move(name, workspace))

    def delete(self, name: str) -> api.Removed:
        """Delete one with its versions; their checkpoints may be deleted from then on."""
        return self._run(self._models.delete(name))

    def versions(self, name: str, *, label: str | None = None) -> list[api.ModelVersion]:
        """Return the versions of one, the newest first, as `Models.versions` does."""
        return self._run(self._models.versions(name, label=label))

    def version(self, name: str, number: int | None = None) -> api.ModelVersion:
        """Return a version of one by its number, the newest if none is given."""
        return self._run(self._models.version(name, number))

    def register(
        self, model: str, checkpoint: str, /, *, key: str | None = None, **fields: object
    ) -> api.ModelVersion:
        """Register a stored checkpoint as the next version of one, as `Models.register` does."""
        return self._run(self._models.register(model, checkpoint, key=key, **fields))

    def change_version(
        self, model: str, number: int, /, *, version: int | None = None, **fields: object
    ) -> api.ModelVersion:
        """Change the name, notes or labels of a version."""
        return self._run(self._models.change_version(model, number, version=version, **fields))

    def delete_version(self, name: str, number: int) -> api.Removed:
        """Delete a version; its checkpoint may be deleted from then on."""
        return self._run(self._models.delete_version(name, number))

    def download(
        self, name: str, number: int | None, folder: str | os.PathLike[str]
    ) -> api.CheckpointDetail:
        """Write the files of a version to a new folder, as `Models.download` does."""
        return self._run(self._models.download(name, number, folder))


class PlainAssignments(PlainThings[api.Assignment]):
    """`Assignments` with plain methods."""

    def __init__(self, of: Assignments, run: _Run) -> None:
        super().__init__(of, run)
        self._assignments = of

    def delete(self, name: str) -> api.Removed:
        """Take a role away."""
        return self._run(self._assignments.delete(name))


def _texts(query: Mapping[str, object]) -> dict[str, object]:
    """Return parameters of a query as HTTP has them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
    }


def _read(body: bytes, kind: type[B]) -> B:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ServerFailed(
            f"the server's answer is not understood ({error}): is it a Rung of another version?"
        ) from error
