"""A cluster on which each component has a principal of its own, with the ACLs of its table."""

from pathlib import Path

import pytest

from cluster.conftest import NewCluster, need_kafka, user_of
from rung.cli.operations.cluster.acls import COMPONENTS
from servers.kafka import KafkaBroker
from support.user import config

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PASSWORD = "kept secret"  # noqa: S105 - of the test's broker
_LISTENER = "LOGIN"
_ASKS = """
from rung import core

with core.init() as run:
    seen = run.train.get_experiment_best_validation()
    run.train.report_validation_metrics(20, {"loss": 1 / (1 + run.info.trial.index)})
    run.train.set_metadata({"seen": [seen, run.train.get_experiment_best_validation()]})
"""


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
    """Everything starts, searches train and end, the audit holds, and nothing was refused.

    In one of them trials ask for the best validation, which an agent reads among all facts.
    """
    need_kafka()
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
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(_ASKS)
    asking = config("asking", searcher | {"max_concurrent_trials": 1})
    trials = user.ended(user.submit(asking, code))["trials"]
    seen = [user.get(f"/trials/{trial['id']}")["metadata"]["seen"] for trial in trials]
    assert seen == [[None, 1.0], [1.0, 0.5], [0.5, pytest.approx(1 / 3)]]
    assert user.rung("audit", experiment).returncode == 0  # by the gateway, which reads it all
    cluster.stop()
    for log in (cluster.folder / "log").iterdir():
        said = log.read_text()
        assert "AuthorizationFailed" not in said, log
        assert "does not allow" not in said, log
