"""Preparing a bucket: made, with a lifecycle, tried; and others' rules left alone."""

import secrets

import pytest
from minio.commonconfig import ENABLED, Filter
from minio.lifecycleconfig import Expiration, LifecycleConfig, Rule

from rung.storage import ObjectError, inspect, prepare
from rung.storage.s3.settings import from_environment
from rung.storage.s3.store import S3Store
from servers.minio import Minio
from servers.s3 import S3Server
from storage.s3.bucket import open_at

pytestmark = pytest.mark.stores


@pytest.fixture
def fresh(server: S3Server) -> S3Store:
    """Give a store whose bucket does not exist."""
    return S3Store(f"s3://fresh-{secrets.token_hex(4)}/rung", from_environment(server.environment))


def test_a_bucket_is_made_and_given_a_lifecycle(fresh: S3Store, kind: type[S3Server]) -> None:
    """What was done is told, once; then nothing differs. MinIO needs no rule, and takes none."""
    done = prepare(fresh)
    if kind is Minio:
        assert [line.split()[0] for line in done] == ["made"]
        assert (inspect(fresh), prepare(fresh)) == ([], [])
        return
    assert [line.split()[0] for line in done] == ["made", "set"]
    assert "uploads abandoned for 3 days are dropped" in done[1]
    assert inspect(fresh) == []
    assert prepare(fresh) == []
    config = fresh.bucket.client.get_bucket_lifecycle(fresh.bucket.name)
    assert config is not None
    (rule,) = config.rules
    assert rule.rule_filter is not None
    assert rule.rule_filter.prefix == "rung/"
    assert rule.abort_incomplete_multipart_upload is not None
    assert rule.abort_incomplete_multipart_upload.days_after_initiation == 3


def test_rules_of_others_stay(fresh: S3Store, kind: type[S3Server]) -> None:
    """A bucket may be shared, and its owner has rules; ours is told as missing until it is set."""
    bucket = fresh.bucket
    bucket.client.make_bucket(bucket.name)
    theirs = Rule(ENABLED, Filter(prefix="logs/"), "theirs", expiration=Expiration(days=9))
    bucket.client.set_bucket_lifecycle(bucket.name, LifecycleConfig([theirs]))
    own = [] if kind is Minio else ["rung-abandoned-uploads-rung"]
    assert [line[:17] for line in inspect(fresh)] == ["no lifecycle rule" for _ in own]
    assert len(prepare(fresh)) == len(own)
    config = bucket.client.get_bucket_lifecycle(bucket.name)
    assert config is not None
    assert {rule.rule_id for rule in config.rules} == {"theirs", *own}
    assert [rule.expiration for rule in config.rules if rule.rule_id == "theirs"]


def test_a_bucket_that_is_missing_is_not_created_by_looking(fresh: S3Store) -> None:
    """Inspecting a bucket that does not exist says so."""
    for _ in range(2):
        with pytest.raises(ObjectError, match="no such bucket"):
            inspect(fresh)


def test_keys_that_may_not_are_refused(server: S3Server) -> None:
    """Preparing tries what Rung will do, so that it fails here and not in the night."""
    with pytest.raises(ObjectError, match="AWS_SECRET_ACCESS_KEY"):
        prepare(open_at(server, AWS_SECRET_ACCESS_KEY="wrong"))  # noqa: S106 - no secret
