"""The components of webhooks: intakes of what happens, and the delivery of what is due."""

import secrets
from typing import Final

from rung.backoff import Backoff
from rung.events import topic
from rung.ledger import Ledger
from rung.runtime import Assignment
from rung.runtime.retry import supervise
from rung.runtime.service import Component, Service, Shared
from rung.runtime.sink.sink import Sink
from rung.secrets.master_key import MasterKey
from rung.secrets.secret_store import SecretStore
from rung.storage import ObjectStore
from rung.subscription.sealed import Seal
from rung.webhooks.delivery import NAME as DELIVERER
from rung.webhooks.delivery import Deliverer
from rung.webhooks.directory import NAME as DIRECTORY
from rung.webhooks.directory import Directory
from rung.webhooks.intake import Intake, OfExperiments, OfLogs, OfSearches
from rung.webhooks.settings import Settings
from rung.webhooks.transport import Transport

NAME: Final = "webhooks"
_SOURCE: Final = "/rung/webhooks"
_UNKNOWN_S: Final = 60.0
"""How long the place of an experiment is waited for."""
_INTAKES: Final = (
    (topic.SEARCHES, OfSearches),
    (topic.EXPERIMENTS, OfExperiments),
    (topic.LOGS, OfLogs),
)


def components(
    store: ObjectStore | None,
    settings: Settings | None = None,
    key: MasterKey | None = None,
    transport: Transport | None = None,
) -> tuple[Component, ...]:
    """Return what tells subscribers of what happens in a ledger.

    Args:
        store: has the sealed receivers.
        settings: of delivery; their defaults if not given.
        key: of secrets; without it no receiver is opened, and deliveries wait.
        transport: delivers; by default one made of the settings.
    """
    settings = settings or Settings()
    transport = transport or Transport(
        rule=settings.rule,
        attempt_s=settings.attempt_s,
        mail=settings.mail,
    )
    seal = None if store is None or key is None else Seal(SecretStore(store, key))
    directory = Directory(seal)
    intake = Intake(directory)

    async def deliver(ledger: Ledger, assignment: Assignment) -> None:
        origin = f"webhooks/{secrets.token_hex(8)}"

        async def work(partition: int) -> None:
            def run() -> Deliverer:
                return Deliverer(
                    ledger,
                    partition,
                    directory=directory,
                    transport=transport,
                    settings=settings,
                    origin=f"{origin}/{secrets.token_hex(4)}",
                )

            name = f"{DELIVERER}/{partition}"
            await supervise(lambda: run().run(), name=name, awaited=False)

        await assignment.run(topic.DELIVERIES, work)

    async def know(ledger: Ledger, _assignment: Assignment) -> None:
        await directory.run(ledger)

    return (
        Shared(
            DIRECTORY,
            (),
            know,
            reads=(topic.DIRECTORY, topic.EXPERIMENTS),
        ),
        *(
            Sink(
                f"webhooks-{name}",
                name,
                _SOURCE,
                handles,
                intake.take,
                appends=(topic.DELIVERIES,),
                backoff=Backoff(0.05, 1.0),
                patience_s=_UNKNOWN_S,
            )
            for name, handles in _INTAKES
        ),
        Shared(DELIVERER, (topic.DELIVERIES,), deliver, appends=(topic.DELIVERIES,)),
    )


SERVICE: Final = Service(NAME, components)
