"""The same facts give the same decisions in any process."""

from support.runtime.hashing import digest_of


def test_decisions_do_not_depend_on_hashing() -> None:
    """Two processes that hash differently write the same history, byte for byte."""
    first = digest_of("scheduler.workload", "1")

    assert len(first) == 64
    assert first == digest_of("scheduler.workload", "2718281828")
