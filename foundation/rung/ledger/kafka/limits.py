"""How large a record each topic takes.

Asked by every process that opens the ledger, so by the client that it has anyway.
"""

from typing import Final

import structlog
from aiokafka.protocol.admin import DescribeConfigsRequest

from rung.events import TOPICS
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import FAILURES, failed, told

RECORD_BYTES_MAX: Final = 8 << 20
"""What topics take as `create` makes them."""
_TOPIC_RESOURCE: Final = 2
_SETTING: Final = "max.message.bytes"

_log = structlog.get_logger()


async def limits(cluster: Cluster) -> dict[str, int]:
    """Return how large a record may be, by topic.

    Where the cluster does not tell, it is what `create` asks for: a broker that takes less refuses
    the record in words, while too low a limit of our own would refuse what the broker takes.
    """
    found: dict[str, int] = {}
    try:
        reason = await _ask(cluster, found)
    except (*FAILURES, NotImplementedError) as error:
        reason = told(error)
    full = {name: cluster.address.topic(name) for name in TOPICS}
    unknown = [full[name] for name in TOPICS if full[name] not in found]
    if unknown:
        _log.warning(
            "the topics' max.message.bytes is not told; this user wants DESCRIBE_CONFIGS on them",
            topics=unknown,
            assumed=RECORD_BYTES_MAX,
            reason=reason,
        )
    return {name: found.get(full[name], RECORD_BYTES_MAX) for name in TOPICS}


async def _ask(cluster: Cluster, found: dict[str, int]) -> str:
    """Fill in what is told by topic, and return why the rest is not."""
    resources = [(_TOPIC_RESOURCE, cluster.address.topic(name), None) for name in TOPICS]
    answer = await cluster.send(DescribeConfigsRequest(resources))
    reason = "the broker says nothing of it"
    for code, _, _, name, entries in answer.resources:
        if code:
            reason = told(failed(code))
        value = next((entry[1] for entry in entries if entry[0] == _SETTING), None)
        if value:
            found[name] = int(value)
    return reason
