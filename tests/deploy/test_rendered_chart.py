"""`deploy/helm/rung`: what the chart makes of its values.

By Helm itself, where `helm` is installed; held against Kubernetes' own schemas where
`kubernetes-validate` is, a package that carries those of each version.
"""

import base64
import importlib
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.place import SERVICES, tool
from deploy.rendered import CHART, EXAMPLES, KUBERNETES, Objects, containers, of, pods, render
from rung.cli.operations.cluster.acls import COMPONENTS
from rung.gateway.settings import MIB, Settings
from rung.storage.s3.settings import Identity, from_environment


def test_helm_lints(example: str) -> None:
    """Helm's own checks pass, warnings counted."""
    values = CHART / f"ci/{example}-values.yaml"
    done = subprocess.run(
        [tool("helm"), "lint", "--strict", "--values", values, CHART, "--kube-version=1.37"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_object(objects: Objects, version: str) -> None:
    """Each follows the schema of its kind, with no field that Kubernetes does not know."""
    pytest.importorskip("kubernetes_validate")
    validate = importlib.import_module("kubernetes_validate")

    for item in objects:
        if not item["apiVersion"].startswith("monitoring.coreos.com/"):
            validate.validate(item, version, strict=True)


def test_every_service_is_deployed(objects: Objects, example: str) -> None:
    """Each as a Deployment that may lose one pod at a time, and agents on their nodes."""
    deployed = {item["metadata"]["name"] for item in of(objects, "Deployment")}
    budgets = {item["metadata"]["name"] for item in of(objects, "PodDisruptionBudget")}

    assert deployed == budgets == {f"research-rung-{name}" for name in SERVICES}
    assert len(of(objects, "DaemonSet")) == EXAMPLES[example]


def test_services_are_upgraded_without_a_gap(objects: Objects) -> None:
    """One replica after the other, each ready first; deciders too, as logic levels allow."""
    strategies = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["strategy"]
        for item in of(objects, "Deployment")
    }
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

    assert strategies == dict.fromkeys(SERVICES, rolling)


def test_a_selector_selects_its_own_pods_only(objects: Objects) -> None:
    """Two Deployments whose selectors overlap would fight over pods."""
    templates = pods(objects)
    for item in objects:
        if item["kind"] not in {"Deployment", "DaemonSet"}:
            continue
        wanted = item["spec"]["selector"]["matchLabels"].items()
        selected = [
            n for n, pod in templates.items() if wanted <= pod["metadata"]["labels"].items()
        ]
        assert selected == [item["metadata"]["name"]]


ROOT = {"add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"]}
"""What an agent may as root."""


def test_a_pod_can_do_little(objects: Objects) -> None:
    """No root but to make trials users apart, no token, nothing to write to but its volumes."""
    for pod in pods(objects).values():
        assert pod["spec"]["automountServiceAccountToken"] is False
        trains = [c["name"] for c in pod["spec"]["containers"]] == ["agent"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is not trains
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]} | (ROOT if container["name"] == "agent" else {}),
        }
        assert container["resources"]["requests"]


def test_an_agent_makes_each_trial_a_user_of_its_own(objects: Objects) -> None:
    """It asks for that by name, so that it refuses to start where it cannot."""
    agents = [container for container in containers(objects) if container["name"] == "agent"]

    assert agents
    for agent in agents:
        assert "--isolation=users" in agent["args"]
        assert "--trial-uids=60000-60999" in agent["args"]
    assert not any("initContainers" in pod["spec"] for pod in pods(objects).values())


def test_trials_have_the_groups_that_are_named() -> None:
    """Those of the agents that they are named for; none unless some are."""
    assert "--trial-groups" not in render("full").stdout
    named = render("full", "--set-string", r"agents.gpu.trialGroups=video\,1500")
    assert named.stdout.count("--trial-groups=video,1500\n") == 1


def test_a_service_is_asked_how_it_is(objects: Objects) -> None:
    """Alive and ready are asked at the probe port that it is told to open."""
    for container in containers(objects):
        if container["name"] in {"cluster-init", "migrate"}:
            continue
        assert "--probe=0.0.0.0:9464" in container["args"]
        paths = {
            p: container[f"{p}Probe"]["httpGet"] for p in ("startup", "liveness", "readiness")
        }
        assert paths == {
            "startup": {"path": "/healthz", "port": "probe"},
            "liveness": {"path": "/healthz", "port": "probe"},
            "readiness": {"path": "/readyz", "port": "probe"},
        }
        assert {"name": "probe", "containerPort": 9464} in container["ports"]


def test_secrets_are_in_no_argument_and_no_configuration(objects: Objects) -> None:
    """They come from a Secret, and to the pods that need them only."""
    secret = {"a-token", "a-password", "a-key", "a-secret"}
    said = [str(c["args"]) for c in containers(objects)]
    said += [str(item["data"]) for item in of(objects, "ConfigMap")]

    assert not any(word in text for word in secret for text in said)
    for container in containers(objects):
        variables = {v["name"] for v in container.get("env", []) if "valueFrom" in v}
        arguments = " ".join(container["args"])
        assert ("RUNG_TOKEN" in variables) == (container["name"] == "gateway")
        assert ("RUNG_CLICKHOUSE_PASSWORD" in variables) == ("clickhouse://" in arguments)
        assert ("AWS_SECRET_ACCESS_KEY" in variables) == ("--objects=" in arguments)


IDENTITY = (
    "--set=objects.credentials=identity",
    "--set=secrets.s3AccessKeyId=",
    "--set=secrets.s3SecretAccessKey=",
    r"--set=serviceAccount.annotations.example\.org/team=lab",
    r"--set=serviceAccount.components.agent.annotations.eks\.amazonaws\.com/role-arn=arn:agent",
    r"--set=serviceAccount.components.setup.annotations.eks\.amazonaws\.com/role-arn=arn:setup",
)


def test_an_identity_takes_the_place_of_keys() -> None:
    """No pod is given a key then; each component has a service account, with a role of its own."""
    done = render("minimal", *IDENTITY)
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    accounts = {
        item["metadata"]["name"]: item["metadata"].get("annotations", {})
        for item in of(objects, "ServiceAccount")
    }

    assert "AWS_" not in done.stdout
    assert "s3-access-key-id" not in done.stdout
    assert {pod["spec"]["serviceAccountName"] for pod in pods(objects).values()} == set(accounts)
    assert set(accounts) == {f"research-rung-{name}" for name in (*SERVICES, "agent", "setup")}
    roles = {name: it.get("eks.amazonaws.com/role-arn") for name, it in accounts.items()}
    assert {name: role for name, role in roles.items() if role} == {
        "research-rung-agent": "arn:agent",
        "research-rung-setup": "arn:setup",
    }
    assert all(it["example.org/team"] == "lab" for it in accounts.values())
    assert accounts["research-rung-setup"]["helm.sh/hook"] == "pre-install,pre-upgrade"


def logins(objects: Objects) -> dict[str, set[str]]:
    """Return the Secrets that containers have their user of Kafka from, by container."""
    return {
        container["name"]: {
            variable["valueFrom"]["secretKeyRef"]["name"]
            for variable in container.get("env", [])
            if variable["name"].startswith("RUNG_KAFKA_SASL_")
        }
        for container in containers(objects)
    }


def test_each_component_has_its_own_user_of_kafka() -> None:
    """In a Secret of its own, made by the chart or elsewhere; the rest have that of all."""
    done = render(
        "minimal",
        "--set=kafka.securityProtocol=SASL_PLAINTEXT,kafka.saslMechanism=SCRAM-SHA-512",
        "--set=secrets.kafkaUsername=shared,secrets.kafkaPassword=x",
        "--set=kafka.components.agent.username=rung-agent,kafka.components.agent.password=y",
        "--set=kafka.components.setup.username=rung-setup,kafka.components.setup.password=z",
        "--set=kafka.components.gateway.existing=there",
        "--set=kafka.acls=User:rung-{component}",
    )
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    made = {
        item["metadata"]["name"]: base64.b64decode(item["data"]["kafka-username"]).decode()
        for item in of(objects, "Secret")
    }
    hooks = [it["metadata"].get("annotations", {}) for it in of(objects, "Secret")]
    [init] = [it for it in containers(objects) if it["name"] == "cluster-init"]

    assert made == {
        "research-rung": "shared",
        "research-rung-setup": "shared",
        "research-rung-kafka-agent": "rung-agent",
        "research-rung-kafka-setup": "rung-setup",
    }
    assert logins(objects) == {
        **{name: {"research-rung"} for name in SERVICES},
        "gateway": {"there"},
        "agent": {"research-rung-kafka-agent"},
        "cluster-init": {"research-rung-kafka-setup"},
        "migrate": set(),
    }
    assert sum("helm.sh/hook" in it for it in hooks) == 2
    assert "--acls=User:rung-{component}" in init["args"]


def test_each_component_has_its_own_certificate() -> None:
    """With mutual TLS the certificate is who a component is."""
    done = render("full", "--set=kafka.components.agent.tlsSecret=agent-client")
    found = {
        pod["spec"]["containers"][0]["name"]: volume["secret"]["secretName"]
        for pod in pods([item for item in yaml.safe_load_all(done.stdout) if item]).values()
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "kafka-certificates"
    }

    assert found == {
        **dict.fromkeys((*SERVICES, "cluster-init", "migrate"), "kafka-client"),
        "agent": "agent-client",
    }


def test_the_chart_and_the_table_of_rights_have_the_same_components() -> None:
    """A component that has rights can have a user, and the other way round."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    components = schema["properties"]["kafka"]["properties"]["components"]["properties"]

    assert components.keys() == {*COMPONENTS, "setup"}


def test_an_account_made_elsewhere_is_everybodys() -> None:
    """The chart makes none then."""
    done = render("minimal", "--set=serviceAccount.create=false,serviceAccount.name=there")
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]

    assert of(objects, "ServiceAccount") == []
    assert {pod["spec"]["serviceAccountName"] for pod in pods(objects).values()} == {"there"}


def test_services_find_where_identities_get_keys() -> None:
    """STS of one's own is in the configuration, and pods may reach it."""
    sts = "objects.stsEndpoint=https://sts.minio-operator.svc:4223/sts/lab"
    done = render("minimal", *IDENTITY, f"--set={sts}")
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    [data] = [
        it["data"] for it in of(objects, "ConfigMap") if it["metadata"]["name"] == "research-rung"
    ]
    identity = from_environment(data | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}).credentials
    [policy] = [
        it["spec"]
        for it in of(objects, "NetworkPolicy")
        if it["metadata"]["name"] == "research-rung-objects"
    ]

    assert isinstance(identity, Identity)
    assert identity.endpoint == "https://sts.minio-operator.svc:4223/sts/lab"
    assert [port["port"] for rule in policy["egress"] for port in rule["ports"]] == [
        9000,
        4223,
        80,
    ]
    assert policy["egress"][1]["to"] == [{"ipBlock": {"cidr": "169.254.170.23/32"}}]


def test_what_a_pod_refers_to_is_there(objects: Objects) -> None:
    """A Secret or a ConfigMap that is missing would keep the pod from starting."""
    named = {(item["kind"], item["metadata"]["name"]) for item in objects}
    elsewhere = {"rung-secrets", "kafka-client", "objects-ca", "series-ca"}
    for pod in pods(objects).values():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            for source in container["envFrom"]:
                assert ("ConfigMap", source["configMapRef"]["name"]) in named
            for variable in container.get("env", []):
                secret = variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name")
                assert secret is None or secret in elsewhere or ("Secret", secret) in named


def test_set_up_comes_first_and_brings_what_it_needs(objects: Objects) -> None:
    """Hooks run before the release is there: topics, then the schema."""
    hooks = [item for item in objects if "annotations" in item["metadata"]]
    weights = {
        item["metadata"]["name"]: int(item["metadata"]["annotations"]["helm.sh/hook-weight"])
        for item in hooks
        if "helm.sh/hook" in item["metadata"]["annotations"]
    }

    assert weights == {
        "research-rung-setup": -10,
        "research-rung-setup-cluster-init": 0,
        "research-rung-setup-migrate": 1,
    }


def test_services_understand_the_configuration(objects: Objects, example: str) -> None:
    """The variables are those that the services read, with values that they take."""
    [data] = [
        i["data"] for i in of(objects, "ConfigMap") if i["metadata"]["name"] == "research-rung"
    ]
    data = {k: v for k, v in data.items() if k != "RUNG_S3_CA_FILE"}  # a file of the pod's
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    if example == "full":
        keys["RUNG_S3_SSE_KEY"] = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
    settings = from_environment(data | keys)

    assert (settings.sse, settings.endpoint) == {
        "minimal": ("none", "http://minio:9000"),
        "full": ("customer", "https://s3.amazonaws.com"),
    }[example]


def test_the_gateway_answers_under_its_names(objects: Objects) -> None:
    """A request is refused whose Host the gateway was not told."""
    [gateway] = [c for c in containers(objects) if c["name"] == "gateway"]
    names = {a.partition("=")[2] for a in gateway["args"] if a.startswith("--host-name=")}
    hosts = {rule["host"] for item in of(objects, "Ingress") for rule in item["spec"]["rules"]}

    assert {"research-rung-gateway", "research-rung-gateway.lab.svc.cluster.local"} <= names
    assert hosts <= names


def ingress(*options: str) -> dict[str, str]:
    """Return the annotations of the Ingress, rendered with more options."""
    done = render("full", *options)
    assert done.returncode == 0, done.stderr
    [found] = of([item for item in yaml.safe_load_all(done.stdout) if item], "Ingress")
    annotations: dict[str, str] = found["metadata"]["annotations"]
    return annotations


def test_the_ingress_takes_what_the_gateway_takes() -> None:
    """A controller with a limit of its own lets the largest submission through, as it arrives."""
    settings = Settings()
    largest = settings.config_bytes_max + settings.code_bytes_max + MIB  # the multipart's own
    annotations = ingress()
    sizes = {
        name: int(size.removesuffix("m")) * MIB
        for name, size in annotations.items()
        if name.endswith("body-size")
    }

    assert sizes.keys() == {
        "nginx.ingress.kubernetes.io/proxy-body-size",
        "nginx.org/client-max-body-size",
        "haproxy-ingress.github.io/proxy-body-size",
    }
    assert all(size >= largest for size in sizes.values())
    assert annotations["nginx.ingress.kubernetes.io/proxy-request-buffering"] == "off"


def test_the_ingress_lets_streams_last() -> None:
    """No controller cuts a stream between two heartbeats, nor keeps its events back."""
    annotations = ingress()

    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert annotations["nginx.org/proxy-buffering"] == "False"
    assert annotations["nginx.org/proxy-read-timeout"] == "3600s"
    assert annotations["haproxy.org/timeout-server"] == "1h"
    assert annotations["haproxy-ingress.github.io/timeout-server"] == "1h"
    assert annotations["projectcontour.io/response-timeout"] == "infinity"
    assert "=3600" in annotations["alb.ingress.kubernetes.io/load-balancer-attributes"]


def test_annotations_of_the_ingress_are_added_replaced_and_removed() -> None:
    """One's own go first, and null takes one of the chart's away."""
    annotations = ingress("--set", r"gateway.ingress.annotations.haproxy\.org/timeout-server=null")

    assert annotations["example.org/team"] == "research"
    assert annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "7200"
    assert "haproxy.org/timeout-server" not in annotations
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == "100m"


def test_an_agent_has_the_gpus_it_is_given() -> None:
    """Without any it offers slots of the CPU."""
    done = render("full")
    agents = {
        item["metadata"]["labels"]["rung.dev/agents"]: item["spec"]["template"]["spec"]
        for item in yaml.safe_load_all(done.stdout)
        if item["kind"] == "DaemonSet"
    }
    gpu, cpu = agents["gpu"]["containers"][0], agents["cpu"]["containers"][0]

    assert gpu["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert not [a for a in gpu["args"] if a.startswith("--slots")]
    assert "nvidia.com/gpu" not in cpu["resources"]["limits"]
    assert "--slots=4" in cpu["args"]
    assert "hostPath" in agents["gpu"]["volumes"][0]
    assert "emptyDir" in agents["cpu"]["volumes"][0]


def test_projections_are_on_a_disk() -> None:
    """They grow with the history: the folder is the node's disk, and not memory."""
    objects: Objects = list(yaml.safe_load_all(render("full").stdout))
    [gateway] = [pod["spec"] for name, pod in pods(objects).items() if name.endswith("gateway")]
    [folder] = [
        word.removeprefix("--projections=")
        for word in gateway["containers"][0]["args"]
        if word.startswith("--projections=")
    ]
    mounts = {it["mountPath"]: it["name"] for it in gateway["containers"][0]["volumeMounts"]}
    [mounted] = [name for path, name in mounts.items() if Path(folder).is_relative_to(path)]
    [volume] = [it for it in gateway["volumes"] if it["name"] == mounted]

    assert "medium" not in volume["emptyDir"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("kafka.brokers=", "kafka.brokers: name the brokers, such as kafka:9092"),
        ("objects.url=", "objects.url: name the bucket"),
        ("series.url=", "series.url: name the database"),
        ("secrets.token=", "secrets.token: give the API a token"),
        ("kafka.securityProtocol=SASL_SSL", "kafka.saslMechanism: name it"),
        ("secrets.s3AccessKeyId=", "secrets.s3AccessKeyId: give keys to the bucket"),
        ("kafka.components.agent.username=a", "kafka.components.agent.password: give a a"),
        ("objects.sse=kms", "objects.sseKmsKey: name the key"),
        ("objects.bucket=x", "'bucket' not allowed"),
    ],
)
def test_what_is_missing_or_unknown_is_named(option: str, message: str) -> None:
    """Helm refuses, says which value, and what would be right."""
    done = render("minimal", "--set", option)

    assert done.returncode != 0
    assert message in done.stderr


def test_packing_follows_the_links(tmp_path: Path) -> None:
    """The chart holds alerts and dashboard wherever it is taken."""
    subprocess.run(
        [tool("helm"), "package", CHART, "--destination", tmp_path],
        check=True,
        capture_output=True,
    )
    [packed] = tmp_path.iterdir()
    listed = subprocess.run(
        ["tar", "tzvf", packed], check=True, capture_output=True, text=True
    ).stdout.splitlines()

    files = {line.split()[-1] for line in listed if line.startswith("-")}
    assert {"rung/files/alerts.yml", "rung/files/rung.json"} <= files
    assert not any("/ci/" in name for name in files)
