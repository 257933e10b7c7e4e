"""Conformance: the checks of scim2-tester, over HTTP, against what the gateway publishes."""

import asyncio

import httpx2
from scim2_client.engines.httpx2 import SyncSCIMClient
from scim2_tester import Status, check_server
from scim2_tester.utils import CheckResult

from gateway.scim.conftest import Scim
from support.gateway.people import bearer


async def test_the_gateway_conforms(scim: Scim) -> None:
    """Every check that scim2-tester has for what is published, but for what is meant so."""

    def check() -> list[CheckResult]:
        with httpx2.Client(
            base_url=scim.url, headers=bearer(scim.secret), timeout=120
        ) as connection:
            return check_server(SyncSCIMClient(connection))

    results = await asyncio.to_thread(check)
    wrong = [
        f"{it.title} {it.resource_type}: {it.reason}"
        for it in results
        if it.status not in {Status.SUCCESS, Status.SKIPPED} and not _is_meant(it.reason or "")
    ]
    assert wrong == []
    assert sum(it.status is Status.SUCCESS for it in results) > 20


def _is_meant(reason: str) -> bool:
    """Return whether the gateway is so by intention.

    A user is active or not, and active where nothing is said; the one address of a user is the
    primary one, also if a client (that draws it by chance) says otherwise.
    """
    if "did not remove attribute 'active'" in reason:
        return True
    return "'emails'" in reason and "primary=False" in reason
