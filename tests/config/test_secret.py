"""What is a secret in an experiment file is shown nowhere, and warned of."""

from typing import Any

import pytest

from rung.config.secret import hidden_in, hide, text_without, warnings_of
from rung.config.secret_name import HIDDEN, looks_secret
from rung.config.yaml import document

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


@pytest.mark.parametrize(
    "name",
    [
        "PASSWORD", "DB_PASSWORD", "dbpassword", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "secret_key",
        "apiKey", "WANDB_API_KEY", "identitytoken", "registry-token", "CREDENTIALS", "auth",
        "connection_string", "PGPASSWD", "client.secret", "Passphrase",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    """By their words, in any spelling."""
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer", "TOKENIZERS_PARALLELISM", "max_tokens", "key_dim", "num_keys", "monkey",
        "token_dropout", "DB_PASSWORD_FILE", "author", "", "value", "HOME", "secret_name",
    ],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    """What only sounds like one is shown."""
    assert not looks_secret(name)


EVERYWHERE: dict[str, Any] = {
    "name": "x",
    "environment": {
        "environment_variables": {
            "cpu": ["HF_TOKEN=hush", "HOME=/x", "EMPTY_TOKEN=", "A=https://me:hush@host/x"],
            "cuda": ["DB_PASSWORD=a=hush"],
        },
        "registry_auth": {"username": "me", "password": "hush", "auth": "hush", "email": None},
        "pod_spec": {
            "env": [{"name": "DB_PASSWORD", "value": "hush"}, {"name": "A", "value": "b"}]
        },
    },
    "checkpoint_storage": {"type": "s3", "access_key": "hush", "secret_key": "hush"},
    "data": {"login": {"password": "hush"}, "size": 3, "url": "s3://bucket/x"},
    "hyperparameters": {
        "api_key": {"type": "const", "val": "hush"},
        "key": {"type": "int", "minval": 1, "maxval": 3},
    },
}


def test_secrets_are_found_wherever_they_are() -> None:
    """Variables, registries, storage, pods, data: by one rule; hyperparameters are shown."""
    hidden = hide(EVERYWHERE)
    assert hidden["environment"] == {
        "environment_variables": {
            "cpu": [
                f"HF_TOKEN={HIDDEN}",
                "HOME=/x",
                "EMPTY_TOKEN=",
                f"A=https://me:{HIDDEN}@host/x",
            ],
            "cuda": [f"DB_PASSWORD={HIDDEN}"],
        },
        "registry_auth": {"username": "me", "password": HIDDEN, "auth": HIDDEN, "email": None},
        "pod_spec": {
            "env": [{"name": "DB_PASSWORD", "value": HIDDEN}, {"name": "A", "value": "b"}]
        },
    }
    assert hidden["checkpoint_storage"] == {
        "type": "s3",
        "access_key": HIDDEN,
        "secret_key": HIDDEN,
    }
    assert hidden["data"] == {"login": {"password": HIDDEN}, "size": 3, "url": "s3://bucket/x"}
    assert hidden["hyperparameters"] == EVERYWHERE["hyperparameters"]
    assert "hush" in EVERYWHERE["environment"]["environment_variables"]["cpu"][0]


def test_hyperparameters_named_like_secrets_are_warned_of() -> None:
    """By name, and never by value: they are shown with every trial."""
    [shown] = warnings_of(EVERYWHERE)
    assert "hush" not in shown
    assert shown.startswith("hyperparameters.api_key.val is shown with every trial")
    assert warnings_of({"name": "x", "data": {"secrets": {}}}) == []


def test_what_was_shown_is_not_taken_for_the_secret() -> None:
    """Whoever submits a shown file again is told where a secret is missing."""
    assert hidden_in(EVERYWHERE) == []
    assert ("environment", "environment_variables", "cpu", 0) in hidden_in(hide(EVERYWHERE))
    assert len(hidden_in(hide(EVERYWHERE))) == 9
