"""An installation as far as webhooks see it: a ledger, a directory, experiments that end."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from rung.events import Event, Payload, decision, fact, topic
from rung.events.changes import RemoveWebhook, SetWebhook
from rung.events.codec import decode
from rung.events.directory import DIRECTORY, DirectoryChanged
from rung.events.experiment import ExperimentSubmitted
from rung.events.webhook import DeliveryAttempted
from rung.ledger import Draft, Ledger
from rung.ledger.port import read_all
from rung.runtime.fact_writer import now
from rung.runtime.service import serve
from rung.secrets.master_key import master_key_of
from rung.secrets.secret_store import SecretStore
from rung.storage import FolderStore
from rung.subscription.address import AddressRule
from rung.subscription.document import Receiver, Subscription, written
from rung.subscription.sealed import Seal
from rung.webhooks.service import components
from rung.webhooks.settings import Settings
from support.gateway.client import SECRETS_KEY

KEY: Final = "whsec_" + "c2VjcmV0LW9mLXRoZS10ZXN0cy0yNC1ieXRlcw=="
LOCAL: Final = (ipaddress.ip_network("127.0.0.0/8"),)
SETTINGS: Final = Settings(
    rule=AddressRule(LOCAL, plain=True), attempt_s=1.0, retry_s=0.05, retry_max_s=0.2
)


class Installation:
    """Writes what an installation would."""

    def __init__(self, ledger: Ledger, objects: Path) -> None:
        self.ledger = ledger
        self.objects = objects
        self._count = 0

    async def tell(self, *payloads: Payload) -> None:
        """Append facts and decisions, each decision about a cause of its own."""
        drafts = []
        for data in payloads:
            self._count += 1
            cause = fact(data, source="/t", origin="t", sequence=self._count, time=now())
            event: Event = cause
            if data.TOPIC in {topic.SEARCHES, topic.DIRECTORY}:
                event = decision(data, source="/t", cause=cause, position=self._count, index=0)
            drafts.append(Draft.of(event))
        await self.ledger.append(drafts)

    async def hook(
        self, webhook_id: str, url: str, *, key: str = KEY, active: bool = True, **about: Any
    ) -> None:
        """Set a webhook of the default workspace."""
        receiver = Receiver(url=url, key=key)
        scope = {
            name: about.pop(name) for name in ("project_id", "experiment_id") if name in about
        }
        workspace_id = about.pop("workspace_id", "default")
        about.setdefault("events", ["rung.experiment.ended.v1"])
        secrets = SecretStore(FolderStore(self.objects), master_key_of(SECRETS_KEY))
        sealed = Seal(secrets).seal(webhook_id, receiver)
        document = written(Subscription(sealed=sealed, **about))
        await self.change(
            SetWebhook(
                webhook_id=webhook_id,
                workspace_id=workspace_id,
                name=webhook_id,
                document=document,
                active=active,
                **scope,
            )
        )

    async def unhook(self, webhook_id: str) -> None:
        """Remove a webhook."""
        await self.change(RemoveWebhook(webhook_id=webhook_id))

    async def change(self, change: Any) -> None:
        """Change the directory."""
        self._count += 1
        await self.tell(
            DirectoryChanged(
                directory=DIRECTORY,
                request_id=f"r{self._count}",
                by="admin",
                version=self._count,
                at_ms=self._count,
                change=change,
            )
        )

    async def submit(self, *names: str) -> None:
        """Submit experiments."""
        await self.tell(
            *(
                ExperimentSubmitted(
                    experiment_id=name, config={"name": f"the {name}"}, source="", code_digest=None
                )
                for name in names
            )
        )

    async def attempts(self) -> list[DeliveryAttempted]:
        """Return what is on record of attempts."""
        found = []
        for partition in range(self.ledger.partitions(topic.DELIVERIES)):
            async for record in read_all(self.ledger, topic.DELIVERIES, partition, 0):
                data = decode(record.value).data
                if isinstance(data, DeliveryAttempted):
                    found.append(data)
        return found

    async def until_recorded(self, count: int, outcome: str) -> list[DeliveryAttempted]:
        """Wait until so many attempts ended so."""
        async with asyncio.timeout(60):
            while True:
                found = [it for it in await self.attempts() if it.outcome == outcome]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def serving(
    installation: Installation, settings: Settings = SETTINGS
) -> AsyncIterator[None]:
    """Run the service until the end of the block."""
    store, key = FolderStore(installation.objects), master_key_of(SECRETS_KEY)
    task = asyncio.create_task(serve(installation.ledger, components(store, settings, key)))
    try:
        yield
    finally:
        if task.done():
            task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
