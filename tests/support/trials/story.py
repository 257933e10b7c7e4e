"""What a run said to its agent, in short."""

from rung import torch as rt
from rung.core.ipc.protocol import Acknowledged, Reported, Restored, Stored
from support.agent_end import AgentEnd

CONFIG = {"searcher": {"metric": "loss"}, "checkpoint_policy": "none", "scheduling_unit": 2}


def story(agent: AgentEnd) -> list[str]:
    """Return what a run said, in short: t2 v6 s6, training, validation, stored at a step."""
    found = []
    for message in agent.messages:
        match message:
            case Reported(kind="system"):
                pass  # of the machine: when, and how much, differs from run to run
            case Reported(kind=kind, step=step):
                found.append(f"{kind[0]}{step}")
            case Stored(steps_completed=step):
                found.append(f"s{step}")
            case Acknowledged():
                found.append("ack")
            case Restored(steps_completed=step):
                found.append(f"r{step}")
            case _:
                found.append(str(message))
    return found


def finish(agent: AgentEnd, context: rt.TrialContext) -> list[str]:
    """Close the run and return what it said, each checkpoint before all reports of later steps.

    Checkpoints are stored behind training, so when they are announced is a matter of luck.
    """
    context.core.close()
    agent.wait_for_end()
    said: list[str] = []
    for word in story(agent):
        before = len(said)
        while word[0] == "s" and before and said[before - 1][0] in "tv":
            if int(said[before - 1][1:]) <= int(word[1:]):
                break
            before -= 1
        if word[0] in "tv":
            while (
                before
                and said[before - 1][0] == "s"
                and int(said[before - 1][1:]) >= int(word[1:])
            ):
                before -= 1
        said.insert(before, word)
    return said
