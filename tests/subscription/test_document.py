"""Documents of webhooks: what is refused, with the field."""

import pytest

from rung.events.errors import InvalidConfig
from rung.subscription.document import Subscription, Threshold, read, written


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("{", "webhook"),
        ("[]", "webhook"),
        ("{}", "events"),
        ('{"events": ["rung.nothing.v1"]}', "events"),
        ('{"events": [], "colour": 1}', "webhook"),
        ('{"events": ["rung.experiment.ended.v1"], "states": ["fine"]}', "states"),
        ('{"metrics": [{"metric": "loss"}]}', "metrics"),
        ('{"logs": ["(?=a)"]}', "logs"),
        ('{"logs": ["a"], "format": "fax"}', "format"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(document: str, field: str) -> None:
    """Before it is in the directory."""
    with pytest.raises(InvalidConfig) as refused:
        read(document)
    assert refused.value.problems[0][0] == field


def test_a_document_is_read_as_it_was_written() -> None:
    """With thresholds on either side."""
    it = Subscription(
        format="slack",
        to="hooks.slack.com",
        sealed="AAAA",
        events=["rung.trial.closed.v1"],
        states=["errored"],
        metrics=[Threshold(metric="loss", below=0.1, above=9.0)],
        logs=["out of memory"],
    )
    assert read(written(it)) == it
    threshold = it.metrics[0]
    passed = [value for value in (0.05, 0.1, 5.0, 9.5) if threshold.passed(value)]
    assert passed == [0.05, 9.5]
