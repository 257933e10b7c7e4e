"""Limits of failed sign-ins."""

from hypothesis import given
from hypothesis import strategies as st

from rung.gateway.identity.attempts import FORGET_S, Attempts, keys_of


def test_the_first_failures_are_free() -> None:
    """Five mistakes at one address cost nothing, the sixth waits, and then twice as long."""
    attempts, keys = Attempts(), keys_of("anna", "10.0.0.1")
    for _ in range(4):
        attempts.failed(keys, 0.0)
    assert attempts.wait_s(keys, 0.0) == 0.0
    waits = []
    for _ in range(4):
        attempts.failed(keys, 0.0)
        waits.append(attempts.wait_s(keys, 0.0))
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert attempts.wait_s(keys, 7.5) == 0.5
    assert attempts.wait_s(keys, 8.0) == 0.0


def test_an_account_is_not_locked_by_strangers() -> None:
    """Failures from many addresses slow the account's own owner for a minute at most."""
    attempts = Attempts()
    for number in range(10_000):
        attempts.failed(keys_of("anna", f"10.0.{number // 256}.{number % 256}"), 0.0)
    assert 0.0 < attempts.wait_s(keys_of("ANNA", "192.0.2.1"), 0.0) <= 60.0
    assert attempts.wait_s(keys_of("ben", "192.0.2.1"), 0.0) == 0.0


def test_an_address_that_tries_many_names_waits() -> None:
    """Spraying one password over all names is limited by the address."""
    attempts = Attempts()
    for number in range(200):
        attempts.failed(keys_of(f"user{number}", "10.0.0.1"), 0.0)
    assert attempts.wait_s(keys_of("another", "10.0.0.1"), 0.0) > 20.0


def test_success_forgets_and_time_does() -> None:
    """Who signs in has no failures at that address any more; nor has anybody after an hour."""
    attempts, keys = Attempts(), keys_of("anna", "10.0.0.1")
    for _ in range(9):
        attempts.failed(keys, 0.0)
    attempts.succeeded(keys)
    assert attempts.wait_s(keys, 0.0) == 0.0
    for _ in range(9):
        attempts.failed(keys, 0.0)
    assert attempts.wait_s(keys, FORGET_S + 1) == 0.0


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=200))
def test_memory_is_limited(tried: list[tuple[str, str]]) -> None:
    """However many names and addresses are tried, no more than so many are kept."""
    attempts = Attempts(keys_max=10)
    for number, (account, address) in enumerate(tried):
        keys = keys_of(account, address)
        assert attempts.wait_s(keys, float(number)) >= 0.0
        attempts.failed(keys, float(number))
        assert len(attempts) <= 10
