"""What answers the directory in place of checkpoint-gc: every checkpoint is there to stay."""

from rung.events import topic
from rung.events.directory import HoldAnswered, HoldRequested
from rung.runtime.relay import Relay

HOLDS = Relay(
    "test-holds",
    topic.DIRECTORY,
    "/rung/test",
    HoldRequested,
    appends=(topic.REQUESTS,),
    translate=lambda it: [HoldAnswered(request=it.request)],
)
