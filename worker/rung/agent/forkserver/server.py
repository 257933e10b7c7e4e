"""The fork server: has the frameworks imported and forks a process for each run.

A process with one thread and no event loop, which the agent starts as
`python -m rung.agent.forkserver.server --control FD`. It answers `Fork` with `Forked`, and when a
run's main process has ended it kills whatever that left behind before it sends `Exited`.

    main process of a run      its own session and process group, and a subreaper: orphans of its
                               descendants become its children
    it ends                    its group is killed while its zombie still holds the process id, so
                               that no other group can have it; then it is reaped
    its orphans                become children of the fork server (a subreaper too): any child
                               that is not the main process of a run is an orphan, and is killed
    a signal                   goes to the main process alone, which may need its DataLoader's
                               workers to act on it; SIGKILL goes to the group
    the agent's end closes     the agent is gone: wait for the next one (`Handover`); where
                               processes are not to go on without an agent, kill them and exit
    the fork server dies       main processes get SIGKILL from the kernel (PDEATHSIG); orphans
                               are reparented to the agent

The processes of a run in its own namespaces are forked by the first process of these (PID 1
there), its *sandbox*. That is a fork of the fork server, too, and does the same: the fork server
sends it requests over a socket, and passes on its answers. It keeps capabilities that its children
drop, so that they can neither inspect nor kill it; and when it ends, the kernel kills all
processes that are left in the namespaces.
"""

import argparse
import array
import contextlib
import gc
import math
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Final, NoReturn

from rung.agent.forkserver.child import become, become_subreaper, die_with_parent
from rung.agent.forkserver.handover import STOP_S, Handover
from rung.agent.forkserver.huge_pages import collapse
from rung.agent.forkserver.messages import (
    MESSAGE_BYTES_MAX,
    Attach,
    End,
    Exited,
    Forget,
    Fork,
    Forked,
    FromForkServer,
    Look,
    Ready,
    Refused,
    Signal,
    Stored,
    Stuck,
    encoder,
    from_fork_server_decoder,
    launch_in,
    to_parent_decoder,
)
from rung.agent.forkserver.preload import warm_up
from rung.agent.isolation import namespaces
from rung.agent.monitoring.process_tree import receivers_of

_SWEEP_MS: Final = 2
_STUCK_SWEEP_MS: Final = 500
_REAP_TIMEOUT_S: Final = 10.0
"""How long after SIGKILL processes are reported as stuck in the kernel."""


_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user, group."""
_DESCRIPTORS: Final = 5
_LOOK_MS: Final = 1000
"""How often the server checks, without an agent, whether it is to exit."""


class _Sandbox:
    """The namespaces of a run, as the fork server handles them."""

    def __init__(self, name: str, pid: int, control: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self.control = control
        self.processes: dict[str, bool] = {}
        """Process of the run → whether it was forked."""


class ForkServer:
    """Forks, signals and reaps."""

    def __init__(
        self,
        control: socket.socket,
        *,
        inside: bool = False,
        unattended_s: float = 0.0,
        key: str = "",
    ) -> None:
        """Serve a control socket.

        Args:
            control: where requests come from.
            inside: whether this is the first process of a sandbox.
            unattended_s: how long processes go on training when the agent is gone.
            key: `Options.key` of the processes.
        """
        self._control = control
        self._inside = inside
        self._sandboxes: dict[str, _Sandbox] = {}
        """By name; one for each run that has processes in it."""
        self._firsts: set[int] = set()
        """The process ids of the first processes of sandboxes, until they are reaped."""
        self._poll = select.poll()
        self.handover: Final = Handover(self._poll, unattended_s, key)
        self._stopping = False
        self._pid = os.getpid()
        self._runs: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._ended: list[tuple[float, Exited]] = []
        """Ends of main processes whose orphans are not gone, and when these count as stuck."""
        self._orphaned: dict[int, frozenset[str]] = {}
        """Orphan → the processes in `_ended` of which it may be a descendant."""
        self._wakeup_read, self._wakeup = socket.socketpair()
        self._modules = len(sys.modules)
        self._children_file = Path(f"/proc/self/task/{self._pid}/children")

    def serve(self) -> None:
        """Serve one agent after the other, until the server is to exit."""
        self._wakeup_read.settimeout(0)
        self._wakeup.settimeout(0)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._wakeup_read, select.POLLIN)
        pages = iter(()) if self._inside else collapse()
        idle_ms: int | None = 0
        while True:
            events = self._poll.poll(self._wait_ms(idle_ms))
            if idle_ms == 0 and not events and next(pages, None) is None:
                idle_ms = None
            goes_on = True
            for descriptor, _ in events:
                if descriptor == self._wakeup_read.fileno():
                    _empty(self._wakeup_read)
                elif descriptor == self._control.fileno():
                    goes_on = self._receive() or self._detach()
                elif descriptor == self.handover.listening:
                    goes_on = self._accept()
                elif not self.handover.read(descriptor):
                    self._relay(descriptor)
                if not goes_on:
                    break
            if not (goes_on and self._wanted()):
                self._kill_all()
                self.handover.close()
                return
            self._reap()

    def _wait_ms(self, idle_ms: int | None) -> int | None:
        """Return how long to wait for events."""
        if not self._ended:
            return _LOOK_MS if self.handover.detached else idle_ms
        stuck = all(stuck_at == math.inf for stuck_at, _ in self._ended)
        return _STUCK_SWEEP_MS if stuck else _SWEEP_MS

    def _detach(self) -> bool:
        """Continue without an agent; return False if the server is to exit instead."""
        self._poll.unregister(self._control)
        self._control.close()
        return self.handover.detach()

    def _accept(self) -> bool:
        """Answer a new connection; return False if the server is to exit."""
        found = self.handover.accept()
        if found is None:
            return True
        connection, request = found
        if isinstance(request, End):
            self._last = connection  # closed by the kernel when this process has ended
            return False
        try:
            self.handover.attach(connection, request.unattended_s)
        except OSError:
            connection.close()
            return True
        self._control = connection
        self._poll.register(self._control, select.POLLIN)
        self._stopping = False
        return True

    def _wanted(self) -> bool:
        """Return whether to go on; send SIGTERM to processes that are overdue to exit."""
        overdue_s = self.handover.overdue_s()
        if overdue_s > 0 and self.handover.alive and not self._stopping:
            self._stopping = True
            for process in self.handover.alive:
                self._signal(Signal(process, signal.SIGTERM))
        return overdue_s < (STOP_S if self.handover.alive else 0.0)

    def _receive(self) -> bool:
        """Carry out one request; return False when the agent is gone."""
        try:
            data, ancillary, _, _ = self._control.recvmsg(
                MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)
            )
        except ConnectionError:
            return False
        if not data:
            return False
        request = to_parent_decoder.decode(data)
        match request:
            case Fork():
                descriptors = array.array("i")
                for _, _, content in ancillary:
                    descriptors.frombytes(content)
                self._make(request, descriptors)
            case Signal():
                self._signal(request)
            case Stored():
                self.handover.stored(request.process)
            case Forget():
                self.handover.forget(request.process)
            case End():
                self._kill_all()
                self.handover.close()
                os._exit(0)
            case Attach() | Look():
                pass  # requests to the listening socket, not to this one
        return True

    def _make(self, request: Fork, descriptors: "array.array[int]") -> None:
        used, read_ends = descriptors[:3], descriptors[3:]
        if read_ends:
            self.handover.keep(request.process, list(read_ends))
        if request.sandbox is None:
            self._fork(request, *used)
        else:
            self._fork_inside(request, request.sandbox, used)
        for descriptor in used:
            os.close(descriptor)

    def _fork(self, fork: Fork, request: int, stdout: int, stderr: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._send(Refused(fork.process, f"cannot fork: {error.strerror}"))
            return
        if pid == 0:
            self._close_inherited()
            become(request, stdout, stderr, self._pid, self._modules)
        self._runs[fork.process] = pid
        self._names[pid] = fork.process
        self._send(Forked(fork.process, pid), pid)

    def _fork_inside(self, fork: Fork, name: str, descriptors: "array.array[int]") -> None:
        """Have a process forked in a sandbox, which is created where there is none yet."""
        sandbox = self._sandboxes.get(name)
        if sandbox is None:
            try:
                sandbox = self._new_sandbox(name, descriptors)
            except OSError as error:
                reason = f"cannot make the run's namespaces: {error.strerror}"
                self._send(Refused(fork.process, reason))
                return
        sandbox.processes[fork.process] = False
        inside = encoder.encode(Fork(fork.process))
        try:
            socket.send_fds(sandbox.control, [inside], list(descriptors))
        except ConnectionError:  # it is dying; the poll notices
            return

    def _new_sandbox(self, name: str, descriptors: "array.array[int]") -> _Sandbox:
        """Create the namespaces of a run, whose first process reads the first descriptor.

        Raises:
            OSError: the kernel refuses.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = namespaces.clone()
        if pid == 0:
            ours.close()
            self._close_inherited()
            request, *printed = descriptors
            for descriptor in printed:  # they are sent again, over the socket
                os.close(descriptor)
            _run_sandbox(theirs, request)
        theirs.close()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sandbox = self._sandboxes[name] = _Sandbox(name, pid, ours)
        self._firsts.add(pid)
        self._poll.register(ours, select.POLLIN)
        return sandbox

    def _close_inherited(self) -> None:
        """Close, in a child, the descriptors of this process alone."""
        self._control.close()
        self._wakeup_read.close()
        self._wakeup.detach()
        for descriptor in self.handover.descriptors():
            os.close(descriptor)
        for sandbox in self._sandboxes.values():
            sandbox.control.close()

    def _relay(self, descriptor: int) -> None:
        """Pass on a message of the first process of a sandbox about a process in it."""
        found = [s for s in self._sandboxes.values() if s.control.fileno() == descriptor]
        for sandbox in found:
            try:
                data, ancillary, _, _ = sandbox.control.recvmsg(
                    MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except ConnectionError:
                data = b""
            if not data:
                self._close(sandbox)
                return
            message = from_fork_server_decoder.decode(data)
            if isinstance(message, Ready) or message.process not in sandbox.processes:
                return
            if isinstance(message, Forked):
                # The kernel translates the process id in the credentials to this namespace.
                pid, _, _ = _CREDENTIALS.unpack(ancillary[0][2])
                sandbox.processes[message.process] = True
                self._send(Forked(message.process, pid, sandbox.pid))
                return
            if isinstance(message, Stuck):
                self._send(message)
                return
            del sandbox.processes[message.process]
            self._send(message)
            if not sandbox.processes:
                self._close(sandbox)

    def _close(self, sandbox: _Sandbox) -> None:
        """Let a sandbox end, or note that it did."""
        self._poll.unregister(sandbox.control)
        sandbox.control.close()
        del self._sandboxes[sandbox.name]
        for process, forked in sandbox.processes.items():
            if forked:
                self._send(Exited(process, None, signal.SIGKILL))
            else:
                self._send(Refused(process, "the run's namespaces ended before it began"))

    def _signal(self, request: Signal) -> None:
        for sandbox in self._sandboxes.values():
            if request.process in sandbox.processes:
                sandbox.control.send(encoder.encode(request))
                return
        pid = self._runs.get(request.process)
        if pid is None:
            return
        if request.signal != signal.SIGKILL:
            for receiver in receivers_of(pid, request.signal):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(receiver, request.signal)
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
            self._reap_child(status.si_pid)
        if self._ended:
            self._clear_up()

    def _reap_child(self, pid: int) -> None:
        """Reap one child; if it is a run's main process, kill its group first."""
        name = self._names.pop(pid, None)
        if name is None:
            self._firsts.discard(pid)
            os.waitpid(pid, 0)
            return
        _kill_group(pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        del self._runs[name]
        self._ended.append(
            (
                time.monotonic() + _REAP_TIMEOUT_S,
                Exited(name, code if code >= 0 else None, -code if code < 0 else None),
            )
        )

    def _clear_up(self) -> None:
        """Kill orphans of runs that ended; once a run has none left, send its `Exited`."""
        ended = frozenset(exited.process for _, exited in self._ended)
        self._orphaned = {pid: self._orphaned.get(pid, ended) for pid in self._orphans()}
        for pid in self._orphaned:
            os.kill(pid, signal.SIGKILL)
        now = time.monotonic()
        waiting = []
        for stuck_at, exited in self._ended:
            count = sum(exited.process in mains for mains in self._orphaned.values())
            if not count:
                self._send(exited)
            elif now < stuck_at:
                waiting.append((stuck_at, exited))
            else:
                self._send(Stuck(exited.process, count))
                waiting.append((math.inf, exited))
        self._ended = waiting

    def _orphans(self) -> list[int]:
        """Return the children that are neither main processes of runs nor first of sandboxes."""
        children = self._children_file.read_text(encoding="ascii").split()
        own = self._names.keys() | self._firsts
        return [pid for pid in map(int, children) if pid not in own]

    def _kill_all(self) -> None:
        for pid in self._names:
            os.kill(pid, signal.SIGKILL)
            _kill_group(pid)
        self._names.clear()
        self._firsts.clear()  # so that they count as orphans, which are killed
        end = time.monotonic() + _REAP_TIMEOUT_S
        while time.monotonic() < end and (orphans := self._orphans()):
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_SWEEP_MS / 1000)

    def _send(self, message: FromForkServer, pid: int | None = None) -> None:
        """Send a message; from within a sandbox, with the credentials of the process `pid`."""
        data = encoder.encode(message)
        self.handover.note(message)
        if self.handover.detached:
            return
        try:
            if self._inside and pid is not None:
                about = _CREDENTIALS.pack(pid, os.getuid(), os.getgid())
                credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, about)
                self._control.sendmsg([data], [credentials])
            else:
                self._control.sendall(data)
        except ConnectionError:  # the agent is gone; the next receive notices
            return


def _run_sandbox(control: socket.socket, request: int) -> NoReturn:
    """Run the first process of a run's namespaces until the other end of the socket closes."""
    try:
        die_with_parent()
        launch = launch_in(request)
        os.close(request)
        assert launch.view is not None
        try:
            namespaces.enter(launch.view)
        except OSError as error:
            reason = f"cannot make the run's namespaces: {error.strerror}"
            control.sendall(encoder.encode(Refused(launch.process, reason)))
        else:
            ForkServer(control, inside=True).serve()
    except BaseException:  # noqa: BLE001 - nothing may propagate into the fork server's loop
        traceback.print_exc()
    finally:
        os._exit(0)


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
    """Import the frameworks, then serve the agent at the other end of the control socket."""
    parser = argparse.ArgumentParser(description="Forks trial processes for an agent.")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--cuda", action="store_true", help="runs will use CUDA devices")
    parser.add_argument(
        "--unattended", type=float, default=0.0, help="seconds to go on without an agent"
    )
    parser.add_argument("--key", default="", help="digest of packages, environment and options")
    parser.add_argument("--cold", action="store_true", help="import no frameworks")
    options = parser.parse_args()
    control = socket.socket(fileno=options.control)
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become_subreaper()
    del sys.path[0]  # the working folder of this process; a run inserts its own
    started = time.monotonic()
    warmed = warm_up(cuda=options.cuda, frameworks=not options.cold)
    gc.collect()
    gc.freeze()
    sys.argv = [""]
    parent = ForkServer(control, unattended_s=options.unattended, key=options.key)
    parent.handover.warmed = warmed
    parent.handover.listen()
    with contextlib.suppress(ConnectionError):  # the agent is gone; `serve` detects it
        control.sendall(encoder.encode(Ready(warmed, time.monotonic() - started)))
    parent.serve()
    os._exit(0)  # unloading the frameworks takes long, and prints warnings


if __name__ == "__main__":
    main()
