"""Downloads from a real server over a line that breaks."""

from pathlib import Path

import pytest

from servers.s3 import S3Server
from storage.s3.bucket import open_at
from storage.s3.proxy import Proxy

pytestmark = pytest.mark.stores


def test_a_download_that_breaks_goes_on_where_it_broke(
    server: S3Server, prefix: str, large: Path, tmp_path: Path
) -> None:
    """Connections cut in the middle of answers cost no more than what was under way."""
    open_at(server, prefix).put("large", large)
    with Proxy(server.endpoint) as proxy:
        store = open_at(server, prefix, RUNG_S3_ENDPOINT=proxy.endpoint)
        proxy.cut_answers(3, after=2 << 20)
        store.get("large", tmp_path / "back")
        assert proxy.cut == 3
        assert proxy.answered < large.stat().st_size + (2 << 20)
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
