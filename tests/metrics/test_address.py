"""The address of a server says what is meant, or what would be right."""

import re
from pathlib import Path

import pytest

from rung.metrics.clickhouse.address import PASSWORD, Address, is_address, read_address

_WORD = "secret"


def test_an_address_is_read() -> None:
    """User, host, port and database; the password comes from the environment."""
    address = read_address("clickhouse://rung@ch.example:9001/series", {PASSWORD: _WORD})
    assert address == Address(
        host="ch.example", port=9001, user="rung", password=_WORD, database="series"
    )
    assert address.place == "clickhouse://rung@ch.example:9001/series"
    assert _WORD not in address.place


def test_what_is_left_out_has_a_usual_value(tmp_path: Path) -> None:
    """ClickHouse's own port, with TLS its other one; the user `default`; no password."""
    plain = read_address("clickhouse://host/db", {})
    assert (plain.user, plain.password, plain.port, plain.secure) == ("default", "", 9000, False)
    (tmp_path / "ca.pem").write_text("")
    url = f"clickhouse://host/db?secure=1&verify=0&ca_file={tmp_path}/ca.pem&timeout_s=2.5"
    secure = read_address(url, {})
    assert (secure.port, secure.secure, secure.verify) == (9440, True, False)
    assert (secure.ca_file, secure.timeout_s) == (f"{tmp_path}/ca.pem", 2.5)


def test_odd_names_are_unquoted_and_ipv6_stays_readable() -> None:
    """A user with an at sign, a host that is an IPv6 address."""
    address = read_address("clickhouse://a%40b@[::1]:9000/db", {})
    assert (address.user, address.host) == ("a@b", "::1")
    assert address.place == "clickhouse://a@b@[::1]:9000/db"


def test_a_password_may_lie_in_a_file(tmp_path: Path) -> None:
    """As secrets are mounted; a line end is no part of it, other blanks are."""
    (tmp_path / "password").write_text(f" {_WORD} \n")
    environment = {f"{PASSWORD}_FILE": str(tmp_path / "password")}
    assert read_address("clickhouse://host/db", environment).password == f" {_WORD} "


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("clickhouse://host", "give clickhouse://USER@HOST:9000/DATABASE"),
        ("clickhouse:///db", "give clickhouse://USER@HOST:9000/DATABASE"),
        ("clickhouse:host", "give clickhouse://USER@HOST:9000/DATABASE"),
        ("clickhouse://host/db/table", "give clickhouse://USER@HOST:9000/DATABASE"),
        ("clickhouse://host:port/db", "the port must be from 1 to 65535"),
        ("clickhouse://host:70000/db", "the port must be from 1 to 65535"),
        ("clickhouse://me:secret@host/db", "leave it out and set RUNG_CLICKHOUSE_PASSWORD"),
        ("clickhouse://host/db?tls=1", "there is no option 'tls'; there are secure, verify"),
        ("clickhouse://host/db?secure=yes", "secure is 'yes': give 1 or 0"),
        ("clickhouse://host/db?timeout_s=0", "timeout_s is '0': give seconds, up to 3600"),
        ("clickhouse://host/db?timeout_s=x", "timeout_s is 'x': give seconds, up to 3600"),
        ("clickhouse://host/db?ca_file=/no/such", "ca_file is '/no/such': give the path"),
    ],
)
def test_a_wrong_address_names_field_and_fix(url: str, message: str) -> None:
    """Refused before anything is opened; a password in it is not repeated."""
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        read_address(url, {})
    assert _WORD not in str(refused.value)


def test_a_password_file_that_is_missing_is_named() -> None:
    """The variable and the path."""
    environment = {f"{PASSWORD}_FILE": "/no/such"}
    with pytest.raises(ValueError, match="RUNG_CLICKHOUSE_PASSWORD_FILE is '/no/such'"):
        read_address("clickhouse://host/db", environment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("clickhouse://h/d", True), ("clickhouse", False), ("./x", False), ("/a/b", False)],
)
def test_a_folder_is_no_address(text: str, *, expected: bool) -> None:
    """Only what begins with the scheme is a server."""
    assert is_address(text) is expected
