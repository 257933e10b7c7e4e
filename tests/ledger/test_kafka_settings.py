"""Addresses of clusters and the settings of the environment."""

from pathlib import Path

import pytest

from rung.events import LedgerError
from rung.ledger import SqliteLedger, open_ledger
from rung.ledger.kafka import Address, KafkaSettings, parse_address
from rung.ledger.kafka.settings import Server

LOGIN = {
    "RUNG_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "RUNG_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "RUNG_KAFKA_SASL_USERNAME": "rung",
    "RUNG_KAFKA_SASL_PASSWORD": "secret",
}


@pytest.mark.parametrize(
    ("url", "servers", "prefix"),
    [
        ("kafka://one", [("one", 9092)], "rung"),
        ("kafka://one:1,two:2", [("one", 1), ("two", 2)], "rung"),
        ("kafka://one:1, two/lab.a-1_x", [("one", 1), ("two", 9092)], "lab.a-1_x"),
        ("kafka://one/", [("one", 9092)], "rung"),
        ("kafka://[::1]:1,[fe80::2]", [("::1", 1), ("fe80::2", 9092)], "rung"),
    ],
)
def test_addresses(url: str, servers: list[tuple[str, int]], prefix: str) -> None:
    """An address names brokers, with Kafka's own port by default, and a prefix."""
    expected = Address(tuple(Server(*server) for server in servers), prefix)
    assert parse_address(url) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka:one", "kafka://host:9092"),
        ("http://one", "kafka://host:9092"),
        ("kafka://", "no host"),
        ("kafka://one:port", "'one:port' is no host"),
        ("kafka://one:0", "'one:0' is no host"),
        ("kafka://one:65536", "'one:65536' is no host"),
        ("kafka://one,,two", "'' is no host"),
        ("kafka://one/a/b", "prefix 'a/b'"),
        ("kafka://one/ä", "prefix 'ä'"),
        ("kafka://one/.a", "prefix '.a'"),
    ],
)
def test_addresses_that_are_none(url: str, said: str) -> None:
    """What is no address is refused with the part that is wrong and an example."""
    with pytest.raises(LedgerError) as raised:
        parse_address(url)
    assert said in str(raised.value)
    assert "kafka://host:9092" in str(raised.value)


def test_no_password_in_the_address() -> None:
    """An URL ends up in logs: a password in it is refused, and not repeated."""
    with pytest.raises(LedgerError, match="RUNG_KAFKA_SASL_PASSWORD") as raised:
        parse_address("kafka://rung:hunter2@one:9092")
    assert "hunter2" not in str(raised.value)


def test_the_environment() -> None:
    """Every field has a variable; what is not set has a default."""
    assert KafkaSettings.from_environment({}) == KafkaSettings()
    found = KafkaSettings.from_environment(
        {
            **LOGIN,
            "RUNG_KAFKA_SSL_CAFILE": __file__,
            "RUNG_KAFKA_TIMEOUT_S": "7.5",
            "RUNG_KAFKA_REQUEST_TIMEOUT_S": "2",
            "RUNG_KAFKA_FETCH_WAIT_S": "0.1",
            "RUNG_KAFKA_BUFFER_BYTES": "1000",
        }
    )
    assert found == KafkaSettings(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="rung",
        sasl_password="secret",  # noqa: S106 - of nobody
        ssl_cafile=Path(__file__),
        timeout_s=7.5,
        request_timeout_s=2,
        fetch_wait_s=0.1,
        buffer_bytes=1000,
    )
    assert "secret" not in repr(found)


def test_the_password_in_a_file(tmp_path: Path) -> None:
    """A mounted secret is read, without the line's end."""
    (tmp_path / "password").write_text("secret\n")
    found = KafkaSettings.from_environment(
        {
            **LOGIN,
            "RUNG_KAFKA_SASL_PASSWORD": "",
            "RUNG_KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "password"),
        }
    )
    assert found.sasl_password == "secret"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    ("changed", "named", "said"),
    [
        ({"SECURITY_PROTOCOL": "TLS"}, "SECURITY_PROTOCOL", "SASL_PLAINTEXT or SASL_SSL"),
        ({"SECURITY_PROTOCOL": "PLAINTEXT"}, "SECURITY_PROTOCOL", "SASL_SSL"),
        ({"SASL_MECHANISM": ""}, "SASL_MECHANISM", "is not set"),
        ({"SASL_MECHANISM": "GSSAPI"}, "SASL_MECHANISM", "SCRAM-SHA-512"),
        ({"SASL_USERNAME": ""}, "SASL_USERNAME", "is not set"),
        ({"SASL_PASSWORD": ""}, "SASL_PASSWORD", "is not set"),
        ({"SASL_PASSWORD_FILE": "/nowhere"}, "SASL_PASSWORD_FILE", "one is enough"),
        (
            {"SASL_PASSWORD": "", "SASL_PASSWORD_FILE": "/nowhere"},
            "SASL_PASSWORD_FILE",
            "/nowhere",
        ),
        ({"SSL_CAFILE": "/nowhere"}, "SSL_CAFILE", "no such file"),
        (
            {"SECURITY_PROTOCOL": "SASL_PLAINTEXT", "SSL_CAFILE": __file__},
            "SSL_CAFILE",
            "does not encrypt",
        ),
        ({"SSL_KEYFILE": __file__}, "SSL_CERTFILE", "is not set"),
        ({"TIMEOUT_S": "soon"}, "TIMEOUT_S", "such as 30"),
        ({"TIMEOUT_S": "0"}, "TIMEOUT_S", "above 0"),
        ({"BUFFER_BYTES": "-1"}, "BUFFER_BYTES", "above 0"),
        ({"TIMEOUT_S": "nan"}, "TIMEOUT_S", "such as 30"),
        ({"BUFFER_BYTES": "inf"}, "BUFFER_BYTES", "is 'inf'"),
    ],
)
def test_settings_that_do_not_fit(changed: dict[str, str], named: str, said: str) -> None:
    """Each is refused with the variable's name and what would be right."""
    environment = {**LOGIN, **{f"RUNG_KAFKA_{name}": value for name, value in changed.items()}}
    with pytest.raises(LedgerError, match=f"^RUNG_KAFKA_{named} ") as raised:
        KafkaSettings.from_environment(environment)
    assert said in str(raised.value)


def test_files_that_hold_nothing() -> None:
    """A file without a certificate is refused when it is to be used, by the variable's name."""
    here = Path(__file__)
    with pytest.raises(LedgerError, match="RUNG_KAFKA_SSL_CAFILE"):
        KafkaSettings(security_protocol="SSL", ssl_cafile=here).ssl_context()
    with pytest.raises(LedgerError, match="RUNG_KAFKA_SSL_CERTFILE"):
        KafkaSettings(security_protocol="SSL", ssl_certfile=here).ssl_context()


@pytest.mark.parametrize("form", ["{}", "sqlite:{}", "sqlite://{}"])
async def test_a_folder_is_opened(tmp_path: Path, form: str) -> None:
    """A path, plain or as an URL, names a ledger in a file."""
    ledger = await open_ledger(form.format(tmp_path / "ledger"))
    assert isinstance(ledger, SqliteLedger)
    await ledger.close()
    assert (tmp_path / "ledger" / "ledger.db").exists()


@pytest.mark.parametrize("url", ["", "postgres://host/db", "sqlite:", "kafka://one:0"])
async def test_nothing_is_opened(url: str) -> None:
    """What names no ledger is refused; what would be right is said."""
    with pytest.raises(LedgerError, match=r"folder|kafka://host"):
        await open_ledger(url)


async def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where aiokafka is not installed, the extra to install is named."""
    monkeypatch.setitem(__import__("sys").modules, "rung.ledger.kafka", None)
    with pytest.raises(LedgerError, match=r"rung\[kafka\]"):
        await open_ledger("kafka://one:1")
