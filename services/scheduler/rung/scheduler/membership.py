"""Which agent an id belongs to: when a join begins a life, and why another one does not.

A pure rule over the facts of a pool, shared by the scheduler and its failure detector:

* an incarnation that is not above the one on record is refused: its folder was restored from a
  backup, or copied;
* while an agent is there (it has neither left nor been lost), another one of its id is refused:
  one with another folder, or on another host. A start from the same folder on the same host is
  the same agent, which was started again.

Joins of an earlier release say nothing of folders and sessions; for them only the incarnation
counts, and nothing is answered.
"""

from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentResumed,
    AgentSuspended,
    same_agent,
)


def admits(event: AgentJoined, *, known: int, join: AgentJoined | None, there: bool) -> bool:
    """Return whether a join begins a new life of its agent.

    Args:
        event: the join.
        known: the highest incarnation of that id so far; -1 before the first.
        join: that of the present life, None where it is not known.
        there: whether that life goes on.
    """
    if event.incarnation <= known:
        return False
    return not (there and join is not None and not same_agent(join, event))


def speaks(
    event: AgentLeft | AgentSuspended | AgentResumed, *, known: int, join: AgentJoined | None
) -> bool:
    """Return whether a fact is of the present life of its agent, and not of a refused one."""
    if event.incarnation != known:
        return False
    return join is None or not event.session or event.session == join.session


def refusal(event: AgentJoined, *, known: int, join: AgentJoined | None, there: bool) -> str:
    """Return why a join was refused, in a sentence that says what to do."""
    name, own = event.agent_id, _place(event)
    if not there:
        return (
            f"the agent {name!r} on {own} joined with incarnation {event.incarnation}, which is "
            f"not above {known} on record: its folder was restored from a backup"
        )
    if join is None or same_agent(join, event):
        return (
            f"the agent {name!r} on {own} joined with incarnation {event.incarnation}, and a "
            f"start of the same folder with incarnation {known} is taken for alive: if the folder "
            "is a copy, start this agent from an empty one with another --agent-id; it joins by "
            "itself once the other has left or is lost"
        )
    return (
        f"two agents are called {name!r}: one on {_place(join)}, which has joined, and one on "
        f"{own}, which is refused: start that one with --agent-id and a name of its own; it joins "
        "by itself once the other has left or is lost"
    )


def _place(join: AgentJoined) -> str:
    return f"host {join.hostname} with the folder {join.folder}"
