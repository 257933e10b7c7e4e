"""The warm parent: has the frameworks imported and forks a process for each run.

A process of its own, with one thread and no event loop, that the agent starts as
`python -m rung.agent.warm_parent --control FD`. It answers `Fork` with `Forked`, and when a
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

The processes of a run in namespaces of its own are forked by the first process of these (PID 1
there), its *sandbox*. That is a fork of the warm parent, too, and does the same: it is asked over
a socket by the warm parent, which passes on what it answers. It holds capabilities that its
children have given up, so that they can neither look into it nor end it; and when it ends, the
kernel kills whatever is left in the namespaces.
"""

import argparse
import array
import gc
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

from rung.agent import namespaces
from rung.agent.child import become, become_subreaper, die_with_parent
from rung.agent.huge_pages import collapse
from rung.agent.warm_up import warm_up
from rung.agent.wire import (
    MESSAGE_BYTES_MAX,
    Exited,
    Fork,
    Forked,
    FromParent,
    Ready,
    Refused,
    Signal,
    encoder,
    from_parent_decoder,
    launch_in,
    to_parent_decoder,
)

_SWEEP_MS: Final = 2
_PATIENCE_S: Final = 10.0
"""How long processes that do not die of SIGKILL hold up the news of their run's end."""


_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user, group."""
_DESCRIPTORS: Final = 3


class _Sandbox:
    """The namespaces of a run, seen from outside."""

    def __init__(self, name: str, pid: int, control: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self.control = control
        self.processes: dict[str, bool] = {}
        """Of the run: whether each was forked."""


class WarmParent:
    """Forks, signals and reaps."""

    def __init__(self, control: socket.socket, *, inside: bool = False) -> None:
        """Serve a control socket.

        Args:
            control: where requests come from.
            inside: whether this is the first process of a sandbox.
        """
        self._control = control
        self._inside = inside
        self._sandboxes: dict[str, _Sandbox] = {}
        """By name: of the runs that have processes in them."""
        self._firsts: set[int] = set()
        """The numbers of the first processes of sandboxes, until they are reaped."""
        self._poll = select.poll()
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
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)
        pages = iter(()) if self._inside else collapse()
        idle_ms: int | None = 0
        while True:
            events = self._poll.poll(_SWEEP_MS if self._ended else idle_ms)
            if idle_ms == 0 and not events and next(pages, None) is None:
                idle_ms = None
            for descriptor, _ in events:
                if descriptor == self._bell.fileno():
                    _empty(self._bell)
                elif descriptor != self._control.fileno():
                    self._relay(descriptor)
                elif not self._receive():
                    self._kill_all()
                    return
            self._reap()

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
        if isinstance(request, Fork):
            descriptors = array.array("i")
            for _, _, content in ancillary:
                descriptors.frombytes(content)
            if request.sandbox is None:
                self._fork(request, *descriptors)
            else:
                self._fork_inside(request, request.sandbox, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            self._signal(request)
        return True

    def _fork(self, fork: Fork, request: int, stdout: int, stderr: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._say(Refused(fork.process, f"cannot fork: {error.strerror}"))
            return
        if pid == 0:
            self._let_go()
            become(request, stdout, stderr, self._pid, self._modules)
        self._runs[fork.process] = pid
        self._names[pid] = fork.process
        self._say(Forked(fork.process, pid), pid)

    def _fork_inside(self, fork: Fork, name: str, descriptors: "array.array[int]") -> None:
        """Have a process forked in a sandbox, which is made where there is none yet."""
        sandbox = self._sandboxes.get(name)
        if sandbox is None:
            try:
                sandbox = self._new_sandbox(name, descriptors)
            except OSError as error:
                reason = f"cannot make the run's namespaces: {error.strerror}"
                self._say(Refused(fork.process, reason))
                return
        sandbox.processes[fork.process] = False
        inside = encoder.encode(Fork(fork.process))
        try:
            socket.send_fds(sandbox.control, [inside], list(descriptors))
        except ConnectionError:  # it is dying; the poll notices
            return

    def _new_sandbox(self, name: str, descriptors: "array.array[int]") -> _Sandbox:
        """Make the namespaces of a run, whose first process reads the first descriptor.

        Raises:
            OSError: the kernel refuses.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = namespaces.clone()
        if pid == 0:
            ours.close()
            self._let_go()
            request, *printed = descriptors
            for descriptor in printed:  # they come again, over the socket
                os.close(descriptor)
            _be_sandbox(theirs, request)
        theirs.close()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sandbox = self._sandboxes[name] = _Sandbox(name, pid, ours)
        self._firsts.add(pid)
        self._poll.register(ours, select.POLLIN)
        return sandbox

    def _let_go(self) -> None:
        """Close, in a child, what is this process's alone."""
        self._control.close()
        self._bell.close()
        self._wakeup.detach()
        for sandbox in self._sandboxes.values():
            sandbox.control.close()

    def _relay(self, descriptor: int) -> None:
        """Pass on what the first process of a sandbox says of the processes in it."""
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
            message = from_parent_decoder.decode(data)
            if isinstance(message, Ready) or message.process not in sandbox.processes:
                return
            if isinstance(message, Forked):
                # The kernel says which process is meant, by its number out here.
                pid, _, _ = _CREDENTIALS.unpack(ancillary[0][2])
                sandbox.processes[message.process] = True
                self._say(Forked(message.process, pid, sandbox.pid))
                return
            del sandbox.processes[message.process]
            self._say(message)
            if not sandbox.processes:
                self._close(sandbox)

    def _close(self, sandbox: _Sandbox) -> None:
        """Let a sandbox end, or note that it did."""
        self._poll.unregister(sandbox.control)
        sandbox.control.close()
        del self._sandboxes[sandbox.name]
        for process, forked in sandbox.processes.items():
            if forked:
                self._say(Exited(process, None, signal.SIGKILL, 0))
            else:
                self._say(Refused(process, "the run's namespaces ended before it began"))

    def _signal(self, request: Signal) -> None:
        for sandbox in self._sandboxes.values():
            if request.process in sandbox.processes:
                sandbox.control.send(encoder.encode(request))
                return
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
            self._firsts.discard(pid)
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
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and (orphans := self._orphans()):
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_SWEEP_MS / 1000)

    def _say(self, message: FromParent, pid: int | None = None) -> None:
        """Send a message; from within a sandbox with the process that it is about."""
        data = encoder.encode(message)
        try:
            if self._inside and pid is not None:
                about = _CREDENTIALS.pack(pid, os.getuid(), os.getgid())
                credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, about)
                self._control.sendmsg([data], [credentials])
            else:
                self._control.sendall(data)
        except ConnectionError:  # the agent is gone; the next receive notices
            return


def _be_sandbox(control: socket.socket, request: int) -> NoReturn:
    """Be the first process of a run's namespaces until the other end of the socket closes."""
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
            WarmParent(control, inside=True).serve()
    except BaseException:  # noqa: BLE001 - nothing may climb into the warm parent's loop
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
