"""Ports for servers: whoever looks for some at the same time finds others."""

import os

import pytest

from servers.process import free_port

_PART = 500


def test_processes_find_ports_in_parts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose numbers would lead them to the same part."""
    own = free_port() // _PART
    other = os.getpid() + 40
    monkeypatch.setattr(os, "getpid", lambda: other)
    assert free_port() // _PART != own


def test_a_process_keeps_to_its_part() -> None:
    """What it finds is near what it found, and never the same."""
    found = [free_port() for _ in range(20)]
    assert len(set(found)) == len(found)
    assert len({port // _PART for port in found}) == 1
