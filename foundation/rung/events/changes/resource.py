"""Changes of what lies in workspaces: policies, templates, webhooks, saved searches, secrets."""

from typing import Literal

from msgspec import Struct

PolicyKind = Literal["defaults", "constraints", "invariants"]


class SetPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="policy.set"):
    """A new policy, or another document of one. Without a place it is of the whole cluster."""

    policy_id: str
    name: str
    """Unique in its place."""
    kind: PolicyKind
    document: str
    """What it says, as its author wrote it."""
    workspace_id: str | None = None
    project_id: str | None = None
    pool: str | None = None


class RemovePolicy(Struct, frozen=True, kw_only=True, tag="policy.remove"):
    """A policy ends."""

    policy_id: str


class SetTemplate(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="template.set"):
    """A new template of experiment files, or another document of one."""

    template_id: str
    workspace_id: str
    name: str
    """Unique in its workspace."""
    document: str
    """What experiment files are merged with, as its author wrote it."""


class RemoveTemplate(Struct, frozen=True, kw_only=True, tag="template.remove"):
    """A template ends."""

    template_id: str


class SetWebhook(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="webhook.set"):
    """A new subscription, or another document of one."""

    webhook_id: str
    workspace_id: str
    name: str
    """Unique in its workspace."""
    document: str
    """Receiver, format and what is subscribed to, without the key that signs deliveries."""
    secret_id: str | None = None
    """The secret with the key that signs deliveries; None: they are not signed."""
    project_id: str | None = None
    """Only what concerns this project."""
    experiment_id: str | None = None
    """Only what concerns this experiment."""
    active: bool = True


class RemoveWebhook(Struct, frozen=True, kw_only=True, tag="webhook.remove"):
    """A subscription ends."""

    webhook_id: str


class SaveSearch(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="search.save"):
    """A new saved search for experiments, or another query of one."""

    search_id: str
    name: str
    """Unique in its workspace, or among those of its user."""
    query: str
    workspace_id: str | None = None
    """Whose members share it; None: it is of the user who saved it."""


class RemoveSearch(Struct, frozen=True, kw_only=True, tag="search.remove"):
    """A saved search ends."""

    search_id: str


class SetSecret(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="secret.set"):
    """A new secret of a workspace, or another value of one; the value is an encrypted object."""

    secret_id: str
    workspace_id: str
    name: str
    """Unique in its workspace."""
    digest: str
    """SHA-256 of the encrypted object."""
    reference: str
    """The name of the encrypted object in the object store."""
    description: str = ""


class RemoveSecret(Struct, frozen=True, kw_only=True, tag="secret.remove"):
    """A secret ends."""

    secret_id: str
