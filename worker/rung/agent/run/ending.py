"""Why a run ended: the evidence, and the outcome that follows from it.

`Evidence` is what the agent collects while a run ends; `ending_of` is a pure function of it, and
the only place where outcomes are decided. The first of these that applies:

    the agent leaves, or its fork servers died     none: the scheduler records the run as lost
    it could not start                             failed
    withdrawn before it started                    killed, preempted
    a part of the run failed on another agent      failed, with that part's message
    the processes, below                           ...
    a checkpoint could not be uploaded             failed, if it had ended well

A failure is the machine's where its disk failed, or where another part failed by its machine. Of
several processes the first failure counts, then the worst outcome. For each process:

    refused its hyperparameters                          invalid_hp
    killed because it hung                               failed
    ended by a signal that the platform sent             killed
    ended by another signal                              failed
    exit code 0, asked to exit and acknowledged          preempted
    exit code 0                                          finished
    another exit code, after the platform's SIGTERM      killed
    another exit code                                    failed

A failure has a *fault*, a code that is the same each time the same thing goes wrong, so that the
searcher can recognise faults that repeat, and a sentence with what to do about it. It is derived
from the last exception's message; then from what was printed after it; and, without an exception,
from the last lines of stderr. Signals that any process may send (SIGKILL, SIGTERM) have none.

When a rank dies, the others soon fail too, because their connections to it break. Which of them
fails first is random, so such failures are recognised by their messages. If the rank was on
another agent, this agent waits for the scheduler's decision about it: what failed there, or that
the agent was lost, which the failure detector records only after some time without heartbeats.
"""

import asyncio
import contextlib
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rung.agent.forkserver.messages import Exited
from rung.events.allocation import AllocationReleased
from rung.events.trial import (
    ExitOutcome,
    RunSpec,
    TrialExited,
    Withdrawal,
    allocation_id_of,
)

MESSAGE_CHARACTERS_MAX: Final = 1000
NEWS_WAIT_S: Final = 45.0
"""How long the report of a failure that names another rank waits for the scheduler's decision
about that: longer than the failure detector waits for heartbeats, which is 30 s by default."""
DISK_WAIT_S: Final = 20.0
"""The longest delay of the report of a gang's part whose machine failed: the other parts must
learn
of it while they wait for the reason of their own failure (`NEWS_WAIT_S`)."""
HANG: Final = "hang"
_WORST_FIRST: Final[tuple[ExitOutcome, ...]] = (
    "invalid_hp",
    "failed",
    "killed",
    "preempted",
    "finished",
)
_ENDED_WELL: Final = frozenset({"finished", "preempted"})


class Ending(NamedTuple):
    """The end of a run, as in `TrialExited`."""

    outcome: ExitOutcome
    code: int | None
    signal: int | None
    message: str
    fault: str = ""
    """The kind of fault; empty where it cannot be determined, or where there was none."""
    machine: bool = False
    """Whether a failure is the machine's, and not the script's."""

    @property
    def well(self) -> bool:
        """Whether the run ended without a failure."""
        return self.outcome in _ENDED_WELL


class Conduct(NamedTuple):
    """What passed between the platform and a run before it ended."""

    asked_to_leave: bool = False
    acknowledged: bool = False
    sent_sigterm: bool = False
    sent_sigkill: str | None = None
    """Why it was killed, if it was."""
    hung: str | None = None
    """For how long it hung, as a sentence, if it was killed for that."""
    refusal: str | None = None
    """Why the script refused its hyperparameters, if it did."""


class Exit(NamedTuple):
    """How one process ended, and the last lines that it printed."""

    rank: int
    exited: Exited
    conduct: Conduct = Conduct()
    """As of its end."""
    exception: str = ""
    """The last line of its last traceback, empty without one."""
    error_line: str = ""
    """That, or else the last line of its stderr."""
    last_lines: Sequence[str] = ()
    """The last lines of its stderr."""


class StopRequest:
    """Requests of the scheduler and the agent to stop a run."""

    def __init__(self) -> None:
        self.asked: Withdrawal | None = None
        """How the scheduler asked the run to end, if it did."""
        self.reason = ""
        """What failed on another agent, where that is why."""
        self.machine = False
        """Whether that was a failure of its machine, and not of the script."""
        self.leaving = False
        """Whether the agent leaves its pool."""
        self._over = asyncio.Event()

    @property
    def alone(self) -> bool:
        """Whether the run ends only because the agent leaves."""
        return self.leaving and self.asked is None

    def ask(self, how: Withdrawal, reason: str, *, machine: bool = False) -> bool:
        """Record a request of the scheduler; return whether it changes anything."""
        if self.asked in {"kill", how}:
            return False
        self.asked, self.reason, self.machine = how, reason, machine
        if how == "kill":
            self._over.set()
        return True

    async def over(self) -> None:
        """Return when the run is to be killed, or the agent leaves."""
        await self._over.wait()

    def leave(self) -> None:
        """Record that the agent leaves."""
        self.leaving = True
        self._over.set()


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What one agent knows about the end of its part of a run."""

    stop: StopRequest = field(default_factory=StopRequest)
    ranked: bool = False
    """Whether the run has several processes, so that messages name the rank."""
    gang: bool = False
    """Whether other agents have parts of it."""
    lost: bool = False
    """Whether the scheduler records it as lost by itself, because the fork servers died or the
    agent leaves."""
    unstarted: str = ""
    """Why it could not start; below, the fault of that."""
    unstarted_fault: str = ""
    exits: Sequence[Exit] = ()
    """Exits of its processes here, in their order; empty: it was not launched."""
    stopped_by: frozenset[int] = frozenset()
    """Signals sent to its processes because one of them had failed."""
    conduct: Conduct = field(default_factory=Conduct)
    oom_killed: bool = False
    """Whether the OOM killer killed a process of this machine while it ran."""
    elsewhere: str = ""
    """What had failed on another agent when its processes were gone."""
    not_uploaded: str = ""
    """Why a checkpoint of it could not be uploaded."""
    disk: str = ""
    """What is wrong with the machine's disk, if that made it fail."""
    waited: bool = False
    """Whether the wait for decisions about other agents is over."""


def ending_of(known: Evidence) -> Ending | None:
    """Return how a run ended, by the evidence; None where the scheduler records it as lost."""
    if known.lost:
        return None
    ending = _ending_here(known)
    if ending.well and known.not_uploaded:
        ending = Ending("failed", ending.code, ending.signal, known.not_uploaded)
    if ending.outcome == "failed" and known.disk:
        said = ending.message
        if known.disk not in said:
            said = f"{known.disk} ({said})"
        return Ending("failed", ending.code, ending.signal, said, ending.fault, machine=True)
    if ending.outcome == "failed" and known.gang:
        return _ending_of_part(ending, known)
    return ending


def _ending_of_part(own: Ending, known: Evidence) -> Ending | None:
    """Return how a gang's part failed, considering the other agents."""
    _, code, number, message, fault, _ = own
    stop = known.stop
    if not known.waited or not follows_from_another(message):
        return Ending("failed", code, number, message, fault, stop.machine)
    if stop.reason:
        return Ending("failed", code, number, stop.reason, fault, stop.machine)
    if stop.asked == "kill":
        said = f"killed, as asked, after it had lost other ranks: {message}"
        return Ending("killed", code, number, said)
    return None if stop.leaving else own


async def wait_for_news(known: Evidence) -> None:
    """Wait for a decision that explains a failure by one on another agent, for a limited time."""
    ending = ending_of(known)
    if (
        known.gang
        and ending is not None
        and ending.outcome == "failed"
        and not known.disk
        and follows_from_another(ending.message)
    ):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEWS_WAIT_S):
                await known.stop.over()
    known.waited = True


def is_failure(exited: Exited, conduct: Conduct) -> bool:
    """Return whether a process failed, so that the other processes of its run are to end."""
    return _outcome_of(exited, conduct, "")[0] in {"failed", "invalid_hp"}


def follows_from_another(words: str) -> bool:
    """Return whether a failure's message shows that another rank was lost."""
    return _ABOUT_ANOTHER.search(words) is not None


def facts_of(  # noqa: PLR0913 - the fields of two facts
    ending: Ending,
    spec: RunSpec,
    agent_id: str,
    *,
    pool: str,
    incarnation: int,
    failed: str = "",
    steps: int | None = None,
    comparable: bool = True,
    under_way: Sequence[str] = (),
) -> tuple[TrialExited, AllocationReleased]:
    """Return the facts about the end of a run: its outcome, and the release of its slots.

    Args:
        ending: how it ended.
        spec: the run.
        agent_id: of this agent.
        pool: of this agent.
        incarnation: of this agent.
        failed: why the other agents of the gang are to stop their parts; empty: they are not.
        steps: the last step that the run reported.
        comparable: whether the fault can be compared with those of other runs; if not, it is
            left out.
        under_way: its checkpoints that are not uploaded yet.
    """
    exited = TrialExited(
        experiment_id=spec.experiment_id,
        trial_id=spec.trial_id,
        run=spec.run,
        agent_id=agent_id,
        outcome=ending.outcome,
        exit_code=ending.code,
        signal=ending.signal,
        message=ending.message[:MESSAGE_CHARACTERS_MAX],
        fault=ending.fault if comparable else "",
        steps_completed=steps,
        machine=ending.machine,
        under_way=list(under_way),
    )
    released = AllocationReleased(
        pool=pool,
        allocation_id=allocation_id_of(spec.trial_id, spec.run),
        agent_id=agent_id,
        incarnation=incarnation,
        failed=failed,
        machine=bool(failed) and ending.machine,
    )
    return exited, released


def _ending_here(known: Evidence) -> Ending:
    """Return how a run ended, by its own processes alone."""
    if known.unstarted:
        return Ending("failed", None, None, known.unstarted, known.unstarted_fault)
    if not known.exits:
        if known.elsewhere:
            return Ending("failed", None, None, known.elsewhere)
        outcome: ExitOutcome = "killed" if known.stop.asked == "kill" else "preempted"
        return Ending(outcome, None, None, "withdrawn before it started")
    ending = _ending_of_processes(known)
    if known.elsewhere and ending.outcome != "invalid_hp":
        return Ending("failed", ending.code, ending.signal, known.elsewhere, ending.fault)
    return ending


def _ending_of_processes(known: Evidence) -> Ending:
    first = next((end for end in known.exits if is_failure(end.exited, end.conduct)), None)
    if first is not None:
        cause = _cause_of(first, known)
        conduct = cause.conduct._replace(refusal=known.conduct.refusal)
    else:
        conduct = known.conduct
        ranks = sorted(known.exits, key=lambda end: end.rank)
        cause = min(
            ranks, key=lambda end: _WORST_FIRST.index(_outcome_of(end.exited, conduct, "")[0])
        )
    stopped = _is_stopped(cause, first, known)
    words = cause.exception if stopped else cause.error_line
    outcome, message = _outcome_of(cause.exited, conduct, words)
    message = message[:MESSAGE_CHARACTERS_MAX]
    if words and stopped:  # the exception is more informative than the signal
        message = f"{words} ({message})"
    fault = ""
    if outcome == "failed":
        fault, sentence = _fault_of(cause, known)
        message = f"{sentence} ({message})" if sentence else message
    if known.ranked and message and outcome != "preempted":
        message = f"rank {cause.rank}: {message}"
    return Ending(outcome, cause.exited.code, cause.exited.signal, message, fault)


def _cause_of(first: Exit, known: Evidence) -> Exit:
    """Return the failure that caused the first one, or the first one itself.

    Of a process that was stopped, only a traceback counts: other output may be incomplete.
    """
    if not follows_from_another(first.error_line):
        return first
    for end in known.exits:
        stopped = _is_stopped(end, first, known)
        words = end.exception if stopped else end.error_line
        failed = bool(end.exited.code) or end.exited.signal is not None
        if failed and not follows_from_another(words) and (words or not stopped):
            return end
    return first


def _is_stopped(end: Exit, first: Exit | None, known: Evidence) -> bool:
    """Return whether a process ended because another one had failed."""
    number = end.exited.signal
    return number is not None and number in known.stopped_by and end is not first


def _outcome_of(exited: Exited, conduct: Conduct, error_line: str) -> tuple[ExitOutcome, str]:
    if conduct.refusal is not None:
        return "invalid_hp", conduct.refusal
    if conduct.hung is not None and exited.signal == signal.SIGKILL:
        return "failed", conduct.hung
    if exited.signal is not None:
        return _outcome_of_signal(exited.signal, conduct)
    if exited.code == 0:
        left = conduct.asked_to_leave and (conduct.acknowledged or conduct.sent_sigterm)
        return ("preempted", "left as asked") if left else ("finished", "")
    message = f"exit code {exited.code}"
    if conduct.sent_sigterm:
        return "killed", f"ended as asked, with {message}"
    return "failed", f"{error_line} ({message})" if error_line else message


def _outcome_of_signal(number: int, conduct: Conduct) -> tuple[ExitOutcome, str]:
    if number == signal.SIGKILL and conduct.sent_sigkill is not None:
        return "killed", conduct.sent_sigkill
    if number == signal.SIGTERM and conduct.sent_sigterm:
        return "killed", "ended as asked"
    hint = "; did the machine run out of memory?" if number == signal.SIGKILL else ""
    return "failed", f"killed by signal {number} ({_name_of(number)}){hint}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


def _fault_of(end: Exit, known: Evidence) -> tuple[str, str]:
    """Return the fault of a failure, and what to do about it."""
    if known.conduct.hung:
        return HANG, ""
    return fault_of(end, oom_killed=known.oom_killed)


def fault_of(end: Exit, *, oom_killed: bool) -> tuple[str, str]:
    """Return the fault with which a process failed, and what to do about it.

    Both may be empty: the fault where the cause may lie outside the process, the remedy where the
    failure's message has all that is known.
    """
    exited, exception, lines = end.exited, end.exception, end.last_lines
    if oom_killed and exited.signal == signal.SIGKILL:
        return "host_memory", _HOST_MEMORY
    for text in _texts(exception, lines):
        for sign in SIGNS:
            if match := sign.pattern.search(text):
                return sign.kind, sign.sentence.format(**match.groupdict())
    if exited.signal is not None:
        return "" if exited.signal in _FROM_OUTSIDE else f"signal {exited.signal}", ""
    found = _EXCEPTION.match(exception)
    if not exception and lines:
        found = _NOT_PARSED.match(lines[-1])
    return found[1] if found else f"exit code {exited.code}", ""


def _texts(exception: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines to search, the most informative first."""
    if not exception:
        yield from reversed(lines)
        return
    yield exception
    before = len(lines)  # lines up to the exception; none where so many came after it
    while before and lines[before - 1] != exception:
        before -= 1
    yield from lines[before:]


class _Sign(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    sentence: str


def _sign(kind: str, pattern: str, sentence: str) -> _Sign:
    return _Sign(kind, re.compile(pattern), sentence)


_HOST_MEMORY: Final = (
    "the machine ran out of memory: lower the batch size, load less data at once, or use fewer "
    "DataLoader workers"
)

SIGNS: Final = (
    _sign(
        "gpu_memory",
        r"(CUDA|HIP)( error:)? out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"
        r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
        r"|OOM when allocating tensor.*/device:GPU|RESOURCE_EXHAUSTED(?!.*/device:CPU)",
        "the GPU ran out of memory: lower the batch size, accumulate gradients over smaller "
        "batches, or train in mixed precision",
    ),
    _sign(
        "shared_memory",
        r"(?i)out of shared memory|insufficient shared memory|unable to \w+ shared memory"
        r"|DataLoader worker .*Bus error|No space left on device.*/dev/shm",
        "shared memory (/dev/shm) is full: use fewer DataLoader workers, or give the agent's "
        "container more of it",
    ),
    _sign(
        "disk_full",
        r"No space left on device|StorageFull|Disk quota exceeded"
        r"|PytorchStreamWriter failed writing file|the disk is full|the disk quota is used up"
        r"|database or disk is full",
        "a disk is full: make room on the agent's disk, or write less to it",
    ),
    _sign(
        "disk_failed",
        r"Input/output error|Read-only file system|Stale file handle|disk I/O error"
        r"|Transport endpoint is not connected|the file system is read-only",
        "a disk fails, is read-only or is no longer mounted: see the log of the agent's kernel",
    ),
    _sign(
        "host_memory",
        r"\bMemoryError\b|Unable to allocate .+ for an array|Cannot allocate memory"
        r"|std::bad_alloc|DefaultCPUAllocator: |DataLoader worker .*killed by signal: Killed"
        r"|OOM when allocating tensor.*/device:CPU",
        _HOST_MEMORY,
    ),
    _sign(
        "nccl",
        r"\bNCCL\b.*\b(error|failure|timeout)\b|\bnccl\w+Error\b|DistBackendError"
        r"|Watchdog caught collective operation timeout",
        "the GPUs lost each other (NCCL): the rank that failed first says why in its log; if none "
        "does, check the network between the agents, and set NCCL_DEBUG=INFO",
    ),
    _sign(
        "gloo",
        r"(?i)\bgloo\b.*(connection|timed out|timeout|reset|refused|closed by peer)",
        "the ranks lost each other (gloo): the rank that failed first says why in its log; if "
        "none does, check the network between the agents",
    ),
    _sign(
        "gpu_assert",
        r"device-side assert triggered",
        "an index was out of range on the GPU, often a label beyond the number of classes: run it "
        "on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see where",
    ),
    _sign(
        "gpu_build",
        r"no kernel image is available|CUDA driver version is insufficient"
        r"|invalid device function",
        "the installed framework does not suit this GPU or its driver: install a build for it",
    ),
    _sign(
        "gpu_missing",
        r"No CUDA GPUs are available|no CUDA-capable device|busy or unavailable"
        r"|Found no NVIDIA driver|CUDA driver initialization failed",
        "the GPU cannot be used: another process may hold it, or its driver is not running; "
        "`nvidia-smi` on the agent's machine shows which",
    ),
    _sign(
        "gpu_fault",
        r"illegal memory access|uncorrectable ECC|fallen off the bus|misaligned address"
        r"|unspecified launch failure",
        "the GPU reported a fault: with CUDA_LAUNCH_BLOCKING=1 the traceback names the operation; "
        "if it happens on one machine only, its GPU may be broken",
    ),
    _sign(
        "gpu",
        r"CUDA error|CUDNN_STATUS_|CUBLAS_STATUS_|cudaError|CUDA_ERROR_",
        "CUDA refused an operation: with CUDA_LAUNCH_BLOCKING=1 the traceback names it",
    ),
    _sign(
        "missing_module",
        r"No module named '?(?P<name>[\w.]+)'?",
        "the module {name} is not there: put it into the code folder, or install it where the "
        "agent runs",
    ),
    _sign(
        "missing_library",
        r"(?P<name>\S+\.so[\w.]*): cannot open shared object file",
        "the library {name} is not installed where the agent runs",
    ),
    _sign(
        "open_files",
        r"Too many open files",
        "too many files are open: use fewer DataLoader workers, or raise the agent's limit "
        "(ulimit -n)",
    ),
)
"""In the order in which they are tried."""

_EXCEPTION: Final = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")
_NOT_PARSED: Final = re.compile(r"(SyntaxError|IndentationError|TabError):")
"""The last line for a script that cannot be parsed, which prints no traceback before it."""
_FROM_OUTSIDE: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)

_ABOUT_ANOTHER: Final = re.compile(
    r"""
    Connection\ (?:closed|reset|refused) | Broken\ pipe | Socket\ (?:closed|Timeout)
    | remote\ (?:worker|process|peer|host) | by\ peer
    | ncclRemoteError | ncclSystemError | NCCL\ (?:error|WARN|communicator) | DistBackendError
    | gloo/transport | TCPStore
    | HorovodInternalError
    | UnavailableError | Task\ /job:worker
    | RanksApart:\ rank\ \d+\ is\ gone
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Messages of frameworks whose connection to another rank broke."""
