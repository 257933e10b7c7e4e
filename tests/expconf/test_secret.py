"""What lies under `data.secrets` is shown nowhere."""

from typing import Any

import pytest

from rung.expconf import document
from rung.expconf.secret import HIDDEN, hide, text_without

PLAIN = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"


@pytest.mark.parametrize(
    ("secrets", "expected"),
    [
        ({"token": "hush", "pin": 4711}, {"token": HIDDEN, "pin": HIDDEN}),
        ({"s3": {"keys": ["hush", None]}}, {"s3": {"keys": [HIDDEN, None]}}),
        ("hush", HIDDEN),
        (["hush"], [HIDDEN]),
    ],
)
def test_values_are_hidden_and_names_are_not(secrets: Any, expected: Any) -> None:
    """Whatever shape the section has; the configuration itself, which the run gets, is kept."""
    config = {"name": "x", "data": {"sources": {}, "secrets": secrets}}

    assert hide(config) == {"name": "x", "data": {"sources": {}, "secrets": expected}}
    assert config["data"] == {"sources": {}, "secrets": secrets}


@pytest.mark.parametrize(
    "config", [{}, {"data": {}}, {"data": {"secrets": {}}}, {"data": {"secrets": None}}]
)
def test_without_secrets_nothing_changes(config: dict[str, Any]) -> None:
    """The very same comes back, so that the author's own text can be shown."""
    assert hide(config) is config


def test_a_file_is_shown_as_what_it_says() -> None:
    """However YAML writes a secret, and though a comment repeats it; all else reads the same."""
    text = PLAIN + (
        "# the token is hush-hush\ndata:\n  n: 1e-3\n  like: '1e-3'\n  secrets:\n"
        '    token: "hu\\x73h-hush"\n    key: >-\n      -----BEGIN\n      hush-hush\n'
    )
    shown = text_without(text)
    tree = document.read(text).tree
    assert tree["data"]["secrets"] == {"token": "hush-hush", "key": "-----BEGIN hush-hush"}
    assert "hush" not in shown
    assert document.read(shown).tree == hide(tree)


def test_a_file_that_cannot_be_read_any_more_is_not_shown() -> None:
    """What an older version took in is not shown in clear because this one refuses it."""
    assert "hush" not in text_without("data: {secrets: {token: hush}")
