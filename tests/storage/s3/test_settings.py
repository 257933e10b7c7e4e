"""The settings of an S3 store: what the environment says, and what it must not."""

import base64
from pathlib import Path

import pytest

from rung.storage import ObjectError
from rung.storage.s3.settings import AWS_ENDPOINT, MIB, Keys, from_environment

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_keys_are_all_that_aws_needs() -> None:
    """Without an endpoint it is AWS, and the bucket says its region."""
    settings = from_environment(KEYS)
    assert (settings.endpoint, settings.region, settings.secure) == (AWS_ENDPOINT, None, True)
    assert isinstance(settings.credentials, Keys)
    assert settings.credentials.access_key.read() == "id"
    assert settings.credentials.secret_key.read() == "secret"
    assert settings.credentials.session_token is None
    assert (settings.sse, settings.part_bytes, settings.parallel) == ("none", 16 * MIB, 4)


def test_a_server_of_ones_own_has_a_region_without_being_asked() -> None:
    """Only AWS has regions that matter; others take the first."""
    settings = from_environment(KEYS | {"RUNG_S3_ENDPOINT": "http://minio:9000/"})
    assert (settings.endpoint, settings.region) == ("http://minio:9000", "us-east-1")
    regions = {"AWS_DEFAULT_REGION": "a", "AWS_REGION": "b", "RUNG_S3_REGION": "c"}
    assert from_environment(KEYS | regions).region == "c"


def test_secrets_are_not_printed() -> None:
    """A record of settings may end in a log."""
    assert "secret'" not in repr(from_environment(KEYS))
    assert "=secret" not in repr(from_environment(KEYS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": ""}, "AWS_ACCESS_KEY_ID is not set, nor is AWS_ACCESS_KEY_ID_FILE"),
        ({"AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY is not set"),
        ({"AWS_SECRET_ACCESS_KEY_FILE": "/x"}, "both set; unset one"),
        ({"RUNG_S3_ENDPONT": "http://x"}, "RUNG_S3_ENDPONT is no setting; known are RUNG_S3_CA"),
        ({"RUNG_S3_ENDPOINT": "minio:9000"}, "such as http://minio:9000"),
        ({"RUNG_S3_ENDPOINT": "ftp://minio"}, "such as http://minio:9000"),
        ({"RUNG_S3_ENDPOINT": "http://minio/path"}, "such as http://minio:9000"),
        ({"RUNG_S3_ENDPOINT": "http://minio:99999"}, "such as http://minio:9000"),
        ({"RUNG_S3_ENDPOINT": "http://key:secret@minio"}, "such as http://minio:9000"),
        ({"RUNG_S3_PUBLIC_ENDPOINT": "minio"}, "RUNG_S3_PUBLIC_ENDPOINT is 'minio'"),
        ({"RUNG_S3_CA_FILE": "/no/such/file"}, "there is no file /no/such/file"),
        ({"RUNG_S3_SSE": "aes"}, "RUNG_S3_SSE is 'aes': one of none, s3, kms, customer"),
        ({"RUNG_S3_SSE": "kms"}, "RUNG_S3_SSE_KEY goes with"),
        ({"RUNG_S3_SSE_KEY": "x"}, "RUNG_S3_SSE_KEY goes with"),
        ({"RUNG_S3_SSE": "customer", "RUNG_S3_SSE_KEY": "x"}, "RUNG_S3_SSE_KEY: is not base64"),
        ({"RUNG_S3_SSE": "customer", "RUNG_S3_SSE_KEY": "aaaa"}, "has 3 bytes; give 32"),
        ({"RUNG_S3_PART_MIB": "4"}, "5 to 5120 MiB"),
        ({"RUNG_S3_PART_MIB": "many"}, "RUNG_S3_PART_MIB is 'many': give a number"),
        ({"RUNG_S3_PARALLEL": "0"}, "RUNG_S3_PARALLEL: from 1 to 64"),
        ({"RUNG_S3_TIMEOUT_S": "0"}, "RUNG_S3_TIMEOUT_S"),
        ({"RUNG_S3_PATIENCE_S": "nan"}, "RUNG_S3_PATIENCE_S"),
    ],
)
def test_what_is_not_possible_is_refused(changes: dict[str, str], message: str) -> None:
    """Each message names the variable and what would be right."""
    with pytest.raises(ObjectError) as caught:
        from_environment(KEYS | changes)
    assert message in str(caught.value)


def test_a_key_of_ours_does_not_travel_in_the_clear() -> None:
    """Except to this very machine, a customer's key wants TLS."""
    key = base64.b64encode(bytes(32)).decode()
    ours = KEYS | {"RUNG_S3_SSE": "customer", "RUNG_S3_SSE_KEY": key}
    with pytest.raises(ObjectError, match="use an https endpoint"):
        from_environment(ours | {"RUNG_S3_ENDPOINT": "http://minio:9000"})
    for endpoint in ("https://minio:9000", "http://127.0.0.1:9000"):
        settings = from_environment(ours | {"RUNG_S3_ENDPOINT": endpoint})
        assert settings.customer_key() == bytes(32)


def test_a_file_that_holds_nothing_is_named(tmp_path: Path) -> None:
    """An empty secret is a mistake, not a key."""
    (tmp_path / "key").write_text(" \n")
    given = {"AWS_ACCESS_KEY_ID_FILE": str(tmp_path / "key"), "AWS_SECRET_ACCESS_KEY": "x"}
    keys = from_environment(given).credentials
    assert isinstance(keys, Keys)
    with pytest.raises(ObjectError, match=r"AWS_ACCESS_KEY_ID_FILE: .*key is empty"):
        keys.access_key.read()
