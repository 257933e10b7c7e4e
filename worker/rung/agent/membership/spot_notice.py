"""Preemption notices of spot instances: trials checkpoint before the cloud takes the machine back.

    aws     IMDSv2: a token, then `spot/instance-action`, which exists from two minutes before a
            spot instance is stopped or terminated
    gcp     `instance/preempted`, which becomes TRUE thirty seconds before a spot or preemptible
            machine is stopped

A thread polls every few seconds, and with back-off where the metadata service does not answer.
"""

import asyncio
import http.client
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import structlog

Choice = Literal["auto", "aws", "gcp", "off"]

AWS_URL: Final = "http://169.254.169.254"
GCP_URL: Final = "http://metadata.google.internal"
EVERY_S: Final = 5.0
_RETRY_S_MAX: Final = 60.0
_TIMEOUT_S: Final = 2.0
_TOKEN_S: Final = 21_600
_GCP_S: Final = 30.0
_DMI: Final = Path("/sys/class/dmi/id")
_UNAUTHORIZED: Final = 401
_OK: Final = 200

_log = structlog.get_logger()


class Notice(NamedTuple):
    """The cloud will take this machine back."""

    reason: str
    seconds: float
    """How long it will still run, approximately."""


class Cloud(Protocol):
    """A source of notices."""

    def ask(self) -> Notice | None:
        """Return the notice if there is one; blocks.

        Raises:
            OSError: no service answers.
            ValueError: the answer cannot be parsed.
            http.client.HTTPException: it is not HTTP.
        """
        ...


class Aws:
    """Amazon EC2's instance metadata, version 2."""

    def __init__(self, url: str = AWS_URL) -> None:
        self._url = url
        self._token = ""

    def ask(self) -> Notice | None:
        """Return the notice if there is one."""
        status, text = self._get()
        if status == _UNAUTHORIZED:
            self._token = ""
            status, text = self._get()
        if status != _OK:
            return None
        found = json.loads(text)
        at = datetime.fromisoformat(str(found["time"]))
        left_s = (at - datetime.now(UTC)).total_seconds()
        return Notice(f"the cloud will {found['action']} this machine", max(left_s, 0.0))

    def _get(self) -> tuple[int, str]:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            _, self._token = _request(self._url, "PUT", "/latest/api/token", ttl)
        headers = {"X-aws-ec2-metadata-token": self._token}
        return _request(self._url, "GET", "/latest/meta-data/spot/instance-action", headers)


class Gcp:
    """Google Compute Engine's metadata server."""

    def __init__(self, url: str = GCP_URL) -> None:
        self._url = url

    def ask(self) -> Notice | None:
        """Return the notice if there is one."""
        path = "/computeMetadata/v1/instance/preempted"
        status, text = _request(self._url, "GET", path, {"Metadata-Flavor": "Google"})
        if status == _OK and text.strip() == "TRUE":
            return Notice("the cloud preempts this machine", _GCP_S)
        return None


def cloud_of(choice: Choice, url: str | None = None, dmi: Path = _DMI) -> Cloud | None:
    """Return the cloud whose metadata service to poll, None for none.

    Args:
        choice: which cloud; `auto`: the one that the machine's firmware names.
        url: of its metadata service; None: the usual one.
        dmi: the folder in which the kernel shows the firmware's strings.
    """
    if choice == "auto":
        choice = _found(dmi)
    if choice == "aws":
        return Aws(url or AWS_URL)
    if choice == "gcp":
        return Gcp(url or GCP_URL)
    return None


async def notice_to(choice: Choice, url: str | None, every_s: float) -> Notice:
    """Return the notice to this machine once there is one; never, where no service gives any.

    Args:
        choice: as for `cloud_of`.
        url: as for `cloud_of`.
        every_s: how often to poll.
    """
    cloud = await asyncio.to_thread(cloud_of, choice, url)
    if cloud is None:
        never: asyncio.Future[Notice] = asyncio.get_running_loop().create_future()
        return await never
    return await notice_from(cloud, every_s=every_s)


async def notice_from(
    cloud: Cloud, *, every_s: float = EVERY_S, told: Callable[[str], None] | None = None
) -> Notice:
    """Return the notice once there is one.

    Args:
        cloud: which to poll.
        every_s: how often.
        told: is called with the error of each failed request.
    """
    wait_s = every_s
    while True:
        try:
            notice = await asyncio.to_thread(cloud.ask)
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            if told is not None:
                told(str(error))
            _log.debug("no answer from the cloud's metadata", error=str(error))
            wait_s = min(2 * wait_s, _RETRY_S_MAX)
        else:
            wait_s = every_s
            if notice is not None:
                return notice
        await asyncio.sleep(wait_s)


def _found(dmi: Path) -> Choice:
    words = ""
    for name in ("sys_vendor", "product_name", "bios_vendor"):
        try:
            words += (dmi / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    if "Amazon EC2" in words:
        return "aws"
    return "gcp" if "Google Compute Engine" in words else "off"


def _request(url: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Send a request, never through a proxy: the service is of this machine alone."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port or 80, timeout=_TIMEOUT_S
    )
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()
