"""`deploy/helm/rung`: what pods may reach, and who may reach them, as Helm renders it."""

from deploy.rendered import Objects, of, pods


def test_nothing_goes_in_or_out_that_is_not_listed(objects: Objects) -> None:
    """One policy denies everything for every pod; each other one allows a port or a peer."""
    policies = {item["metadata"]["name"]: item["spec"] for item in of(objects, "NetworkPolicy")}
    deny = policies.pop("research-rung-deny")
    labels = deny["podSelector"]["matchLabels"].items()

    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert "egress" not in deny
    assert all(labels <= pod["metadata"]["labels"].items() for pod in pods(objects).values())
    for policy in policies.values():
        rules = policy.get("ingress", []) + policy.get("egress", [])
        assert all(rule for rule in rules), "an empty rule allows everything"


def test_policies_open_the_ports_of_the_stores(objects: Objects, example: str) -> None:
    """They follow from the addresses, so that one is not changed without the other."""
    ports = {
        item["metadata"]["name"].removeprefix("research-rung-"): [
            port["port"]
            for rule in item["spec"].get("egress", [])
            for port in rule.get("ports", [])
        ]
        for item in of(objects, "NetworkPolicy")
    }
    expected = {
        "minimal": ([53, 53, 9092], [9000], [9000]),
        "full": ([53, 53, 9095, 9093, 9094], [443], [9440]),
    }

    assert (ports["ledger"], ports["objects"], ports["series"]) == expected[example]
