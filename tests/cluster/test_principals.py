"""A cluster on which each component has a principal of its own, with the ACLs of its table."""

from pathlib import Path

import pytest

from cluster.conftest import NewCluster, need, user_of
from e2e.user import config
from ledger.brokers import KAFKA
from rung.cli.operations.cluster.access import COMPONENTS
from servers.kafka import KafkaBroker

pytestmark = pytest.mark.cluster

PASSWORD = "kept secret"  # noqa: S105 - of the test's broker
_LISTENER = "LOGIN"


class GuardedBroker(KafkaBroker):
    """A broker that knows a user for each component, and lets none do anything by itself."""

    def __init__(self, folder: Path) -> None:
        users = " ".join(f'user_rung-{name}="{PASSWORD}"' for name in ("operator", *COMPONENTS))
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        super().__init__(
            folder,
            listeners={_LISTENER: "SASL_PLAINTEXT"},
            properties={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:rung-operator",
                "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": f"{login} {users};",
            },
        )

    @property
    def url(self) -> str:
        """Where a login is asked for."""
        return f"kafka://{self.listener(_LISTENER)}"


def test_a_search_where_each_component_has_its_rights_only(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    """Everything starts, a search trains and ends, the audit holds, and nothing was refused."""
    need(KAFKA)
    cluster = new_cluster(
        broker=GuardedBroker(tmp_path / "guarded"),
        partitions=2,
        agents=1,
        slots=2,
        environment={
            "RUNG_ACLS": "User:rung-{component}",
            "RUNG_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "RUNG_KAFKA_SASL_MECHANISM": "PLAIN",
            "RUNG_KAFKA_SASL_USERNAME": "rung-operator",
            "RUNG_KAFKA_SASL_PASSWORD": PASSWORD,
        },
        logins={name: {"RUNG_KAFKA_SASL_USERNAME": f"rung-{name}"} for name in COMPONENTS},
    )
    cluster.start()
    user = user_of(cluster)
    searcher = {
        "name": "random",
        "metric": "loss",
        "max_trials": 3,
        "max_length": {"batches": 20},
    }

    experiment = user.submit(config("principals", searcher))

    assert user.ended(experiment)["state"] == "completed"
    assert user.rung("audit", experiment).returncode == 0  # by the gateway, which reads it all
    cluster.stop()
    for log in (cluster.folder / "log").iterdir():
        said = log.read_text()
        assert "AuthorizationFailed" not in said, log
        assert "does not allow" not in said, log
