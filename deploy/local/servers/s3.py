"""S3 servers for tests: one pair of keys, one bucket, a folder of their own."""

from typing import Final, Self

from servers.process import Server

ACCESS_KEY: Final = "rung"
SECRET_KEY: Final = "rung-local-secret"  # noqa: S105 - of a server on the loopback interface
REGION: Final = "us-east-1"


class S3Server(Server):
    """An S3 server; acknowledged objects survive a restart."""

    _bucket: str

    @property
    def endpoint(self) -> str:
        """Its address: `http://127.0.0.1:…`."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Its bucket, for `rung.storage.open_store` with the variables of `environment`."""
        return f"s3://{self._bucket}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with its address and credentials."""
        return {
            "RUNG_S3_ENDPOINT": self.endpoint,
            "RUNG_S3_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    def start(self) -> Self:
        """Start it, or start it again, and wait until it takes objects.

        Raises:
            ServerFailed: there is no program, or it did not start; the message has its log.
        """
        raise NotImplementedError

    def restart(self) -> None:
        """Kill it and start it again, on the same ports and data."""
        self.kill()
        self.start()
