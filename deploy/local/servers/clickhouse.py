"""A ClickHouse server on the loopback interface, with its own folder, ports and password."""

import contextlib
import http.client
import secrets
import shutil
from pathlib import Path
from typing import Final

from servers.process import Server, ServerFailed, ServerProcess, free_port

USER: Final = "rung"
DATABASE: Final = "rung"

_QUERY_S: Final = 60.0
_PING_S: Final = 1.0

# Both files suit 18.16 as well as the newest server: what one of them does not know it ignores.
# The root element is what the oldest reads; the newest reads it too.
_CONFIG: Final = """\
<yandex>
    <logger><level>information</level><console>1</console></logger>
    <listen_host>127.0.0.1</listen_host>
    <tcp_port>{native}</tcp_port>
    <http_port>{http}</http_port>
{tls}
    <path>{folder}/data/</path>
    <tmp_path>{folder}/tmp/</tmp_path>
    <user_files_path>{folder}/user_files/</user_files_path>
    <format_schema_path>{folder}/format_schemas/</format_schema_path>
    <users_config>{folder}/users.xml</users_config>
    <default_profile>default</default_profile>
    <default_database>default</default_database>
    <timezone>UTC</timezone>
    <mark_cache_size>67108864</mark_cache_size>
    <uncompressed_cache_size>0</uncompressed_cache_size>
    <max_server_memory_usage>2000000000</max_server_memory_usage>
    <max_concurrent_queries>64</max_concurrent_queries>
    <keep_alive_timeout>3</keep_alive_timeout>
    <mlock_executable>false</mlock_executable>
</yandex>
"""
_TLS: Final = """\
    <tcp_port_secure>{port}</tcp_port_secure>
    <openSSL><server>
        <certificateFile>{certificate}</certificateFile>
        <privateKeyFile>{key}</privateKeyFile>
        <verificationMode>none</verificationMode>
        <loadDefaultCAFile>false</loadDefaultCAFile>
    </server></openSSL>"""
_USERS: Final = """\
<yandex>
    <profiles>
        <default>
            <max_memory_usage>1000000000</max_memory_usage>
            <max_threads>2</max_threads>
        </default>
    </profiles>
    <users>
        <{user}>
            <password>{password}</password>
            <networks><ip>127.0.0.1</ip><ip>::1</ip></networks>
            <profile>default</profile>
            <quota>default</quota>
        </{user}>
    </users>
    <quotas><default></default></quotas>
</yandex>
"""


class ClickHouse(Server):
    """One server. Its data stay in the folder, through `kill` and `stop`, until `start` again.

    Attributes:
        password: of the user `rung`, drawn when the object is made and set at each start.
    """

    def __init__(self, folder: Path, *, tls: tuple[Path, Path] | None = None) -> None:
        """Prepare it; nothing is started yet.

        Args:
            folder: for configuration, data and log; made if need be.
            tls: certificate and key, to speak TLS as well, on a port of its own.

        Raises:
            ServerFailed: no ClickHouse is installed.
        """
        self.folder: Final = folder.resolve()
        self.password: Final = secrets.token_urlsafe(12)
        self._native: Final = free_port()
        self._http: Final = free_port()
        self._secure: Final = free_port()
        self._tls: Final = tls
        self._process = ServerProcess(
            [*_program(), f"--config-file={self.folder}/config.xml"],
            log=self.folder / "clickhouse.log",
        )

    @property
    def url(self) -> str:
        """What `--series` takes; the password goes into RUNG_CLICKHOUSE_PASSWORD."""
        return self.database_url(DATABASE)

    @property
    def secure_url(self) -> str:
        """The same over TLS."""
        assert self._tls, "it has no certificate"
        return f"clickhouse://{USER}@127.0.0.1:{self._secure}/{DATABASE}?secure=1"

    @property
    def port(self) -> int:
        """Where it speaks ClickHouse's own protocol."""
        return self._native

    @property
    def http_port(self) -> int:
        """Where it speaks HTTP."""
        return self._http

    def database_url(self, database: str) -> str:
        """Return what `--series` takes for another database."""
        return f"clickhouse://{USER}@127.0.0.1:{self._native}/{database}"

    def start(self) -> None:
        """Start it and wait until it answers; makes the database `rung` if there is none.

        Raises:
            ServerFailed: it does not start; the message ends with the last it said.
        """
        self._configure()
        self._process.start(self._answers)
        self.create(DATABASE)

    def create(self, database: str) -> None:
        """Make a database if there is none of that name."""
        self.query(f"CREATE DATABASE IF NOT EXISTS {database}")

    def drop(self, database: str) -> None:
        """Drop a database and all that it holds."""
        self.query(f"DROP DATABASE IF EXISTS {database}")

    def query(self, sql: str) -> str:
        """Run a statement over HTTP and return its answer, tab-separated.

        Raises:
            ServerFailed: the server refuses the statement.
        """
        headers = {"X-ClickHouse-User": USER, "X-ClickHouse-Key": self.password}
        status, answer = self._ask("POST", "/", sql.encode(), headers, timeout_s=_QUERY_S)
        if status != http.client.OK:
            raise ServerFailed(f"{sql[:200]}: {answer}")
        return answer.rstrip("\n")

    def _configure(self) -> None:
        for name in ("data", "tmp", "user_files", "format_schemas"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        tls = ""
        if self._tls:
            certificate, key = self._tls
            tls = _TLS.format(port=self._secure, certificate=certificate, key=key)
        (self.folder / "config.xml").write_text(
            _CONFIG.format(native=self._native, http=self._http, tls=tls, folder=self.folder)
        )
        users = self.folder / "users.xml"
        users.touch(mode=0o600)
        users.write_text(_USERS.format(user=USER, password=self.password))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._ask("GET", "/ping", timeout_s=_PING_S)[0] == http.client.OK
        return False

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        timeout_s: float,
    ) -> tuple[int, str]:
        link = http.client.HTTPConnection("127.0.0.1", self._http, timeout=timeout_s)
        with contextlib.closing(link):
            link.request(method, path, body, headers or {})
            response = link.getresponse()
            return response.status, response.read().decode(errors="replace")


def installed() -> bool:
    """Whether this machine has a ClickHouse server."""
    return bool(shutil.which("clickhouse-server") or shutil.which("clickhouse"))


def _program() -> list[str]:
    """Return the command of the server, of an old package or of the newer single binary."""
    if path := shutil.which("clickhouse-server"):
        return [path]
    if path := shutil.which("clickhouse"):
        return [path, "server"]
    raise ServerFailed(
        "no `clickhouse-server` and no `clickhouse` is on the PATH: on Debian, apt-get install "
        "clickhouse-server"
    )
