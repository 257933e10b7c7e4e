"""Problem documents (RFC 9457)."""

from typing import Annotated

from msgspec import Meta, Struct


class ProblemItem(Struct, kw_only=True, omit_defaults=True):
    """One problem of a request's body."""

    path: str
    message: str
    value: str | None = None
    line: int | None = None


class ProblemDocument(Struct, kw_only=True, omit_defaults=True):
    """What went wrong, as in RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemItem] | None = None
    incident: Annotated[str | None, Meta(description="to be found in the server's log")] = None
