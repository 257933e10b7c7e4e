"""The warm parent: has the frameworks imported and forks a process for each run.

A process of its own, with one thread and no event loop, that the agent starts as
`python -m rung.agent.warm_parent --control FD`. It answers `Launch` with `Forked`, and when a
run's main process has ended it kills whatever that left behind before it says `Exited`.

    main process of a run      its own session and process group, and a subreaper: orphans of its
                               descendants become its children
    it ends                    its group is killed while its zombie still holds the number, so
                               that nobody else's group can be meant; then it is reaped
    its orphans                become children of the warm parent (a subreaper too): any child
                               that is not the main process of a run is an orphan, and is killed
    the agent's end closes     the agent is gone: kill everything, leave
    the warm parent dies       main processes get SIGKILL from the kernel (PDEATHSIG); orphans
                               fall to the agent
"""

import argparse
import array
import gc
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

from rung.agent.child import become, become_subreaper
from rung.agent.huge_pages import collapse
from rung.agent.warm_up import warm_up
from rung.agent.wire import (
    MESSAGE_BYTES_MAX,
    Exited,
    Forked,
    FromParent,
    Launch,
    Ready,
    Refused,
    Signal,
    encoder,
    to_parent_decoder,
)

_SWEEP_MS: Final = 2
_PATIENCE_S: Final = 10.0
"""How long processes that do not die of SIGKILL hold up the news of their run's end."""


class WarmParent:
    """Forks, signals and reaps."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._runs: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._ended: list[tuple[float, Exited]] = []
        self._bell, self._wakeup = socket.socketpair()
        self._modules = len(sys.modules)
        self._children_file = Path(f"/proc/self/task/{self._pid}/children")

    def serve(self) -> None:
        """Carry out requests until the agent's end of the socket closes."""
        self._bell.settimeout(0)
        self._wakeup.settimeout(0)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        pages = collapse()
        idle_ms: int | None = 0
        while True:
            events = poll.poll(_SWEEP_MS if self._ended else idle_ms)
            if idle_ms == 0 and not events and next(pages, None) is None:
                idle_ms = None
            for descriptor, _ in events:
                if descriptor == self._bell.fileno():
                    _empty(self._bell)
                elif not self._receive():
                    self._kill_all()
                    return
            self._reap()

    def _receive(self) -> bool:
        """Carry out one request; return False when the agent is gone."""
        try:
            data, ancillary, _, _ = self._control.recvmsg(
                MESSAGE_BYTES_MAX, socket.CMSG_SPACE(2 * array.array("i").itemsize)
            )
        except ConnectionError:
            return False
        if not data:
            return False
        request = to_parent_decoder.decode(data)
        if isinstance(request, Launch):
            descriptors = array.array("i")
            for _, _, content in ancillary:
                descriptors.frombytes(content)
            self._launch(request, *descriptors)
        else:
            self._signal(request)
        return True

    def _launch(self, launch: Launch, stdout: int, stderr: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._say(Refused(launch.process, f"cannot fork: {error.strerror}"))
        else:
            if pid == 0:
                self._control.close()
                self._bell.close()
                self._wakeup.detach()
                become(launch, stdout, stderr, self._pid, self._modules)
            self._runs[launch.process] = pid
            self._names[pid] = launch.process
            self._say(Forked(launch.process, pid))
        os.close(stdout)
        os.close(stderr)

    def _signal(self, request: Signal) -> None:
        pid = self._runs.get(request.process)
        if pid is None:
            return
        try:
            os.killpg(pid, request.signal)
        except ProcessLookupError:  # forked, but not yet the leader of its group
            os.kill(pid, request.signal)

    def _reap(self) -> None:
        while True:
            try:
                status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if status is None:
                break
            self._bury(status.si_pid)
        if self._ended:
            self._clear_up()

    def _bury(self, pid: int) -> None:
        """Reap one child; of a run's main process, kill the group before."""
        name = self._names.pop(pid, None)
        if name is None:
            os.waitpid(pid, 0)
            return
        _kill_group(pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        del self._runs[name]
        self._ended.append(
            (
                time.monotonic() + _PATIENCE_S,
                Exited(name, code if code >= 0 else None, -code if code < 0 else None, 0),
            )
        )

    def _clear_up(self) -> None:
        """Kill orphans of runs that ended; once there are none, say that the runs have ended."""
        orphans = self._orphans()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        now = time.monotonic()
        waiting = []
        for patience, exited in self._ended:
            if orphans and now < patience:
                waiting.append((patience, exited))
            else:
                self._say(Exited(exited.process, exited.code, exited.signal, len(orphans)))
        self._ended = waiting

    def _orphans(self) -> list[int]:
        """Return the children that are not main processes of runs (nor zombies of such)."""
        children = self._children_file.read_text(encoding="ascii").split()
        return [pid for pid in map(int, children) if pid not in self._names]

    def _kill_all(self) -> None:
        for pid in self._names:
            os.kill(pid, signal.SIGKILL)
            _kill_group(pid)
        self._names.clear()
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and (orphans := self._orphans()):
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_SWEEP_MS / 1000)

    def _say(self, message: FromParent) -> None:
        try:
            self._control.sendall(encoder.encode(message))
        except ConnectionError:  # the agent is gone; the next receive notices
            return


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _empty(bell: socket.socket) -> None:
    try:
        while bell.recv(4096):
            pass
    except BlockingIOError:
        return


def main() -> None:
    """Warm up, then serve the agent at the other end of the control socket."""
    parser = argparse.ArgumentParser(description="Forks trial processes for an agent.")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--cuda", action="store_true", help="runs will use CUDA devices")
    parser.add_argument("--cold", action="store_true", help="import no frameworks")
    options = parser.parse_args()
    control = socket.socket(fileno=options.control)
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become_subreaper()
    del sys.path[0]  # where this process happens to run; a run has its own folder there
    started = time.monotonic()
    warmed = warm_up(cuda=options.cuda, frameworks=not options.cold)
    gc.collect()
    gc.freeze()
    sys.argv = [""]
    parent = WarmParent(control)
    control.sendall(encoder.encode(Ready(warmed, time.monotonic() - started)))
    parent.serve()
    os._exit(0)  # taking the frameworks down takes long, and they complain


if __name__ == "__main__":
    main()
