"""Stores on a server of the tests."""

from rung.storage.s3.settings import from_environment
from rung.storage.s3.store import S3Store
from servers.s3 import S3Server

PART = 5 << 20
"""The smallest part that S3 takes."""


def open_at(server: S3Server, prefix: str = "", **changes: str) -> S3Store:
    """Return a store with the smallest parts and little patience."""
    quick = {"RUNG_S3_PART_MIB": "5", "RUNG_S3_TIMEOUT_S": "20", "RUNG_S3_PATIENCE_S": "2"}
    settings = from_environment(server.environment | quick | changes)
    return S3Store(f"{server.url}/{prefix}", settings)
