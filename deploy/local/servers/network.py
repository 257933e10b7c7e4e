"""A private network of this machine: a bridge, and network namespaces in place of other machines.

Each node has a network namespace and a veth pair to the bridge, to which this machine is
connected, too. A link can be cut and restored. Needs root and iproute2; `available` tests for
them.

It is isolated: there is no route to other networks, and nothing is forwarded.
"""

import contextlib
import os
import random
import shutil
import subprocess
from typing import Final

from servers.process import ServerFailed

_PREFIX: Final = "10.213"


class Network:
    """One bridge and its nodes; `close` removes them."""

    def __init__(self) -> None:
        """Make the bridge.

        Raises:
            ServerFailed: this user, or this machine, may not.
        """
        number = _make_bridge()
        self._name: Final = _bridge(number)
        self._net: Final = f"{_PREFIX}.{number}"
        self._nodes: Final[list[str]] = []
        try:
            _ip("addr", "add", f"{self.host}/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
        except ServerFailed:
            self.close()
            raise

    @property
    def host(self) -> str:
        """The machine's own address in it."""
        return f"{self._net}.1"

    def join(self, node: str) -> tuple[str, ...]:
        """Make a namespace for a node; return the command prefix that runs commands in it."""
        number = len(self._nodes) + 2
        self._nodes.append(node)
        space, ours, theirs = self._space(node), self._cable(node), f"{self._name}p{number}"
        _ip("netns", "add", space)
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        _ip("link", "set", ours, "master", self._name, "up")
        _ip("link", "set", theirs, "netns", space)
        for command in (
            ("addr", "add", f"{self._net}.{number}/24", "dev", theirs),
            ("link", "set", theirs, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", space, *command)
        return ("ip", "netns", "exec", space)

    def cut(self, node: str) -> None:
        """Cut a node off the network: packets are lost without an error."""
        _ip("link", "set", self._cable(node), "down")

    def mend(self, node: str) -> None:
        """Undo `cut`."""
        _ip("link", "set", self._cable(node), "up")

    def close(self) -> None:
        """Remove the namespaces and the bridge."""
        for node in self._nodes:
            for command in (
                ("link", "del", self._cable(node)),
                ("netns", "del", self._space(node)),
            ):
                with contextlib.suppress(ServerFailed):
                    _ip(*command)
        with contextlib.suppress(ServerFailed):
            _ip("link", "del", self._name)

    def _space(self, node: str) -> str:
        return f"{self._name}-{node}"

    def _cable(self, node: str) -> str:
        return f"{self._name}n{self._nodes.index(node) + 2}"


def available() -> bool:
    """Return whether namespaces can be made here, by making one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        network = Network()
    except ServerFailed:
        return False
    try:
        network.join("probe")
    except ServerFailed:
        return False
    finally:
        network.close()
    return True


def _bridge(number: int) -> str:
    return f"rung-{number}"


def _make_bridge() -> int:
    """Make a bridge; return its number, which no other network of this machine has.

    Raises:
        ServerFailed: this user, or this machine, may not; or all numbers are taken.
    """
    for number in random.sample(range(256), 256):
        try:
            _ip("link", "add", _bridge(number), "type", "bridge")
        except ServerFailed as error:
            if "File exists" not in str(error):
                raise
        else:
            return number
    raise ServerFailed(f"there are 256 bridges {_bridge(0)} to {_bridge(255)} already")


def _ip(*arguments: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own command
        ["ip", *arguments],  # noqa: S607 - iproute2's, wherever it is
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise ServerFailed(f"ip {' '.join(arguments)}: {said}")
