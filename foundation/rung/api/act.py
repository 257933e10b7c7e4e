"""Answers about acts: who asked for what, and when."""

from typing import Annotated

from msgspec import Meta, Struct

from rung.api.listing import Listing
from rung.api.states import Time


class Act(Struct, kw_only=True):
    """Something that a user asked for; what came of it is in the events that name it as cause."""

    id: Annotated[str, Meta(description="of its event; what it led to has it as `cause`")]
    at: Time
    actor: Annotated[
        str | None,
        Meta(description="id of the user who asked; null: not on record, of an earlier release"),
    ]
    on_behalf_of: Annotated[
        str | None, Meta(description="id of the user for whom the actor acted")
    ] = None
    actor_name: Annotated[str | None, Meta(description="that the user has now")] = None
    on_behalf_of_name: Annotated[str | None, Meta(description="that the user has now")] = None
    type: Annotated[str, Meta(description="of its event, such as rung.trial.kill_requested.v1")]
    subject: Annotated[str, Meta(description="id of what it is about")]
    experiment_id: Annotated[str | None, Meta(description="null: it is about none")] = None
    did: Annotated[
        str, Meta(description="in words, behind the actor's name: `killed trial k3f9x2ma.17`")
    ]


class ActList(Listing[Act], kw_only=True):
    """Acts, the newest first."""

    items: list[Act]
    last_event_id: Annotated[
        str, Meta(description="`Last-Event-ID` of a stream that goes on behind the list")
    ]
    next_cursor: str | None = None
