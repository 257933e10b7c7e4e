"""`rung.storage.s3.credentials`: temporary keys for an identity, from services of this machine.

MinIO itself makes the keys that they hand out, with a session token, so that they work only if
each part of them arrives; SeaweedFS has no temporary keys.
"""

import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from minio.credentials.providers import AssumeRoleProvider

from rung.storage import ObjectError, ObjectUnavailable
from rung.storage.s3.credentials import credentials
from rung.storage.s3.settings import Identity, Keys, from_environment
from rung.storage.s3.store import S3Store
from servers.minio import Minio
from servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from storage.s3.bucket import open_at
from storage.s3.sts import ROLE, Issued, KeyService, key_service

NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}


@pytest.fixture
def keys(server: S3Server) -> Iterator[KeyService]:
    """Give the services."""

    def issue() -> Issued:
        if not isinstance(server, Minio):
            return Issued(ACCESS_KEY, SECRET_KEY, "")
        made = AssumeRoleProvider(
            sts_endpoint=server.endpoint,
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region=REGION,
        ).retrieve()
        return Issued(made.access_key, made.secret_key, made.session_token or "")

    deadline = time.monotonic() + 20
    while True:  # MinIO takes objects before its STS answers
        try:
            issue()
            break
        except ValueError:
            assert time.monotonic() < deadline
    with key_service(issue) as service:
        yield service


@pytest.fixture
def web(keys: KeyService, tmp_path: Path) -> dict[str, str]:
    """Give the variables that a pod with a web identity has."""
    (tmp_path / "token").write_text(f"{keys.token}\n")
    return NO_KEYS | {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ROLE_ARN": ROLE,
        "AWS_ENDPOINT_URL_STS": keys.url,
    }


def works(store: S3Store) -> None:
    """Write and read."""
    store.put_bytes("x", b"1")
    assert store.read("x") == b"1"
    store.close()


def test_a_web_identity(
    server: S3Server, keys: KeyService, web: dict[str, str], prefix: str
) -> None:
    """Its token becomes keys once, for all requests until they expire."""
    works(open_at(server, prefix, **web))

    assert keys.asked == ["POST /"]


def test_keys_are_renewed_with_the_token_as_it_is_then(
    server: S3Server, keys: KeyService, web: dict[str, str], prefix: str
) -> None:
    """Tokens are rotated, too; keys that expire within seconds are not used any more."""
    store = open_at(server, prefix, **web)
    keys.lasts_s = 9
    store.put_bytes("x", b"1")
    keys.token = "the next one"  # noqa: S105 - of the test
    Path(web["AWS_WEB_IDENTITY_TOKEN_FILE"]).write_text(keys.token)
    works(store)

    assert len(keys.asked) >= 3


def test_one_thread_renews_for_all(
    server: S3Server, keys: KeyService, web: dict[str, str]
) -> None:
    """Requests side by side do not each ask STS."""
    provider = credentials(from_environment(server.environment | web))
    together = threading.Barrier(8)

    def retrieve(_: int) -> str:
        together.wait()
        return provider.retrieve().access_key

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(retrieve, range(8)))) == 1
    assert keys.asked == ["POST /"]


def test_the_role_of_an_instance(server: S3Server, keys: KeyService, prefix: str) -> None:
    """The metadata service is asked as IMDSv2 wants it."""
    works(open_at(server, prefix, **NO_KEYS, AWS_EC2_METADATA_SERVICE_ENDPOINT=f"{keys.url}/"))

    assert [asked.partition(" ")[0] for asked in keys.asked] == ["PUT", "GET", "GET"]


def test_the_role_of_a_container(
    server: S3Server,
    keys: KeyService,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As EKS Pod Identity gives it: a token in a file, and who takes it."""
    (tmp_path / "token").write_text(keys.token)
    container = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{keys.url}/v1/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    for name, value in container.items():
        monkeypatch.setenv(name, value)
    works(open_at(server, prefix, **NO_KEYS, **container))

    assert keys.asked == ["GET /v1/credentials"]


def test_an_identity_that_is_refused(
    server: S3Server, keys: KeyService, web: dict[str, str]
) -> None:
    """The message says what to look at, and nothing that is raised has the token."""
    keys.status = 403
    with pytest.raises(ObjectError, match="AWS_ROLE_ARN") as raised:
        credentials(from_environment(server.environment | web)).retrieve()

    assert "answered 403" in str(raised.value)
    assert not raised.value.retriable
    assert keys.token not in "".join(traceback.format_exception(raised.value))


def test_a_token_that_cannot_be_read(server: S3Server, web: dict[str, str]) -> None:
    """Its file is named."""
    Path(web["AWS_WEB_IDENTITY_TOKEN_FILE"]).unlink()
    with pytest.raises(ObjectError, match=r"token: No such file or directory; look at AWS_WEB"):
        credentials(from_environment(server.environment | web)).retrieve()


@pytest.mark.parametrize("away", [503, None])
def test_a_service_that_is_away_for_a_while(
    server: S3Server, keys: KeyService, web: dict[str, str], prefix: str, away: int | None
) -> None:
    """A request waits for its keys within its patience; then it may be made again."""
    here = web["AWS_ENDPOINT_URL_STS"]
    keys.status = away or 200
    given = web | {"AWS_ENDPOINT_URL_STS": here if away else "http://127.0.0.1:9"}
    store = open_at(server, prefix, **given | {"RUNG_S3_PATIENCE_S": "0.5"})
    with pytest.raises(ObjectUnavailable, match="no keys to S3 for the web identity"):
        store.put_bytes("x", b"1")
    keys.status = 200
    if away:
        works(store)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, Identity(token_file=Path("/t"))),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_REGION": "eu-west-1", "AWS_ROLE_ARN": "r"},
            Identity(
                token_file=Path("/t"), role="r", endpoint="https://sts.eu-west-1.amazonaws.com"
            ),
        ),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_REGION": "cn-north-1"},
            Identity(token_file=Path("/t"), endpoint="https://sts.cn-north-1.amazonaws.com.cn"),
        ),
        ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}, Identity()),
        ({}, Identity()),
    ],
)
def test_which_identity_it_is(given: dict[str, str], expected: Identity) -> None:
    """What the environment announces goes before the role of the instance."""
    assert from_environment(given).credentials == expected


def test_keys_go_before_an_identity() -> None:
    """As in the SDKs of AWS."""
    given = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}

    found = from_environment(given | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}).credentials

    assert isinstance(found, Keys)


@pytest.mark.parametrize(
    "given", [{"RUNG_S3_ENDPOINT": "http://minio:9000"}, {"AWS_EC2_METADATA_DISABLED": "true"}]
)
def test_no_instance_is_asked_in_vain(given: dict[str, str]) -> None:
    """A server of one's own takes no role of an instance: keys are missing, and that is said."""
    with pytest.raises(ObjectError, match=r"AWS_ACCESS_KEY_ID is not set.*AWS_WEB_IDENTITY"):
        from_environment(given)
