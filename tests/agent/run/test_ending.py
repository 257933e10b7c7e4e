"""Why runs end: what is recorded follows from what is known, in one place."""

import asyncio
from collections.abc import Sequence

import pytest

from rung.agent.forkserver.messages import Exited
from rung.agent.run import ending as module
from rung.agent.run.ending import (
    DISK_WAIT_S,
    MESSAGE_CHARACTERS_MAX,
    NEWS_WAIT_S,
    SIGNS,
    Conduct,
    Ending,
    Evidence,
    Exit,
    ending_of,
    fault_of,
    follows_from_another,
    wait_for_news,
)
from rung.events.trial import ExitOutcome, Withdrawal
from rung.runtime.health.disk import ANSWERS_WITHIN_S
from rung.scheduler.settings import Settings


def failed(exception: str, lines: Sequence[str]) -> Exit:
    """Return the end of a process with an exit code."""
    return Exit(0, Exited("e.0.1", 1, None), Conduct(), exception, exception, lines)


def died(number: int, exception: str, lines: Sequence[str]) -> Exit:
    """Return the end of a process by a signal."""
    return Exit(0, Exited("e.0.1", None, number), Conduct(), exception, exception, lines)


@pytest.mark.parametrize(
    ("code", "signal", "conduct", "outcome"),
    [
        (0, None, Conduct(), "finished"),
        (0, None, Conduct(acknowledged=True), "finished"),
        (0, None, Conduct(asked_to_leave=True), "finished"),
        (0, None, Conduct(asked_to_leave=True, acknowledged=True), "preempted"),
        (0, None, Conduct(asked_to_leave=True, sent_sigterm=True), "preempted"),
        (0, None, Conduct(sent_sigkill="late"), "finished"),
        (0, None, Conduct(refusal="no"), "invalid_hp"),
        (1, None, Conduct(refusal="no"), "invalid_hp"),
        (1, None, Conduct(), "failed"),
        (1, None, Conduct(asked_to_leave=True, acknowledged=True), "failed"),
        (143, None, Conduct(asked_to_leave=True, sent_sigterm=True), "killed"),
        (None, 9, Conduct(), "failed"),
        (None, 9, Conduct(sent_sigkill="as asked"), "killed"),
        (None, 11, Conduct(sent_sigkill="as asked"), "failed"),
        (None, 15, Conduct(), "failed"),
        (None, 15, Conduct(sent_sigterm=True), "killed"),
        (None, 40, Conduct(), "failed"),
    ],
)
def test_outcomes(
    code: int | None, signal: int | None, conduct: Conduct, outcome: ExitOutcome
) -> None:
    """The outcome follows from the exit and from what passed before, as the table says."""
    ending = ending_of(
        Evidence(exits=[Exit(0, Exited("a", code, signal), conduct)], conduct=conduct)
    )
    assert ending is not None
    assert (ending.outcome, ending.code, ending.signal) == (outcome, code, signal)


def test_message_is_bounded() -> None:
    """A long last line is cut."""
    ending = ending_of(Evidence(exits=[failed("x" * 5000, ())]))
    assert ending is not None
    assert len(ending.message) == MESSAGE_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has",
            "gpu_memory",
        ),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu_memory"),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate",
            "gpu_memory",
        ),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", "gpu_memory"),
        ("torch.AcceleratorError: CUDA error: out of memory", "gpu_memory"),
        ("RuntimeError: HIP error: out of memory", "gpu_memory"),
        (
            (
                "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
                "__wrapped__Mul_device_/job:localhost/replica:0/task:0/device:GPU:0}} OOM when "
                "allocating tensor with shape[9,9] and type float on "
                "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]"
            ),
            "gpu_memory",
        ),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is poss",
            "shared_memory",
        ),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "host_memory"),
        ("OSError: [Errno 28] No space left on device: 'x.pt'", "disk_full"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk_full"),
        (
            "safetensors_rust.SafetensorError: I/O error: Os { code: 28, kind: StorageFull }",
            "disk_full",
        ),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 TiB for an array",
            "host_memory",
        ),
        (
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: "
                "can't allocate memory: you tried to allocate 8796093022208 bytes."
            ),
            "host_memory",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda",
            "nccl",
        ),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer", "gloo"),
        ("RuntimeError: CUDA error: device-side assert triggered", "gpu_assert"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "gpu_build",
        ),
        ("RuntimeError: No CUDA GPUs are available", "gpu_missing"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu_fault"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "gpu"),
        ("ModuleNotFoundError: No module named 'lightning.pytorch'", "missing_module"),
        ("ImportError: libcudnn.so.9: cannot open shared object file", "missing_library"),
        ("OSError: [Errno 24] Too many open files", "open_files"),
        ("ValueError: batch size 3 does not fit", "ValueError"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_exceptions(words: str, kind: str) -> None:
    """The last line of a traceback tells the kind of the fault."""
    assert fault_of(failed(words, [words]), oom_killed=False)[0] == kind


@pytest.mark.parametrize(("device", "kind"), [("GPU", "gpu_memory"), ("CPU", "host_memory")])
def test_tensorflow_names_the_device_that_is_full(device: str, kind: str) -> None:
    """In a line behind the exception's; where it dies without one, in what it logs."""
    said = (
        f"OOM when allocating tensor with shape[9,9] and type float on /task:0/device:{device}:0"
    )
    words = (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:"
    )
    lines = [words, "", "Detected at node fc/MatMul defined at (most recent call last):", said]
    for known in (lines, lines[1:]):  # of many lines, the exception's may not be there any more
        assert fault_of(failed(words, known), oom_killed=False)[0] == kind
    logged = f"W0000 op_kernel.cc:1858] OP_REQUIRES failed : RESOURCE_EXHAUSTED: {said}"
    assert fault_of(died(6, "", [logged]), oom_killed=False)[0] == kind


def test_every_sentence_has_a_remedy() -> None:
    """Each sign has a kind of its own, and says what is wrong and what to do."""
    assert len({sign.kind for sign in SIGNS}) == len(SIGNS)
    for sign in SIGNS[:-3]:
        assert ": " in sign.sentence, sign


def test_names_are_filled_in() -> None:
    """What is missing is named."""
    _, remedy = fault_of(
        failed("ModuleNotFoundError: No module named 'einops'", []), oom_killed=False
    )
    assert remedy.startswith("the module einops is not there")


def test_last_lines_count_where_there_is_no_exception() -> None:
    """A process that aborted in C says why on stderr, and often more behind that."""
    lines = [
        "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        "terminate called without an active exception",
        "",
    ]
    assert fault_of(died(6, "", lines), oom_killed=False)[0] == "nccl"
    assert fault_of(died(6, "", []), oom_killed=False)[0] == "signal 6"


def test_what_was_caught_before_the_exception_does_not_count() -> None:
    """Only the last exception and what follows it tell why; a warning before it does not."""
    lines = ["warning: No space left on device, going on", "ValueError: no", "NCCL error: remote"]
    assert fault_of(failed("ValueError: no", lines[:2]), oom_killed=False)[0] == "ValueError"
    assert fault_of(failed("ValueError: no", lines), oom_killed=False)[0] == "nccl"


@pytest.mark.parametrize("number", [1, 2, 9, 15])
def test_signals_from_outside_have_no_kind(number: int) -> None:
    """Anybody may have sent them, so they are never counted as the same fault."""
    assert fault_of(died(number, "", []), oom_killed=False)[0] == ""


def test_killed_while_memory_was_short() -> None:
    """While the kernel kills for memory, a SIGKILL not sent by the agent was the kernel's."""
    fault, remedy = fault_of(died(9, "", []), oom_killed=True)
    assert fault == "host_memory"
    assert "ran out of memory" in remedy


@pytest.mark.parametrize("kind", ["SyntaxError", "IndentationError", "TabError"])
def test_a_script_that_is_no_python_is_told_without_a_traceback(kind: str) -> None:
    """Python prints none for it; what prints such a line before another one failed otherwise."""
    lines = ['  File "train.py", line 1', "    def", "       ^", f"{kind}: invalid syntax"]
    assert fault_of(failed("", lines), oom_killed=False)[0] == kind
    assert fault_of(failed("", [*lines, "bye"]), oom_killed=False)[0] == "exit code 1"
    assert fault_of(failed("KeyError: 'x'", lines), oom_killed=False)[0] == "KeyError"


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: [gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer",
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "rung.core._rank_connections.RanksApart: rank 1 is gone while this one waited for it",
        "horovod.common.exceptions.HorovodInternalError: [gloo/transport/tcp/pair.cc:575] Broken",
    ],
)
def test_the_loss_of_another_rank(words: str) -> None:
    """What frameworks say when a rank that they were connected to dies."""
    assert follows_from_another(words)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "ValueError: no data",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
        "RanksApart: rank 1 called gather as its call 1 where this one called broadcast",
    ],
)
def test_a_failure_of_its_own(words: str) -> None:
    """What went wrong in the rank itself."""
    assert not follows_from_another(words)


def part(words: str = "RuntimeError: [gloo] Connection closed by peer") -> Evidence:
    """Return what is known of a part of a run that failed with these words."""
    return Evidence(exits=[failed(words, ())], ranked=True, gang=True)


def told(known: Evidence) -> Ending:
    """Return the ending that is reported."""
    ending = ending_of(known)
    assert ending is not None
    return ending


async def waiting(known: Evidence) -> "asyncio.Task[None]":
    """Return the task that waits for news, once it does."""
    task = asyncio.create_task(wait_for_news(known))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_part_whose_run_is_lost_has_not_failed() -> None:
    """What failed because another agent was lost was killed, and no fault is counted."""
    known = part()
    task, own = await waiting(known), told(known)
    known.stop.ask("kill", "")
    await task
    assert own.fault == "gloo"
    assert (told(known).outcome, told(known).fault) == ("killed", "")
    assert told(known).message.endswith(own.message)


async def test_a_part_fails_in_the_words_of_the_cause() -> None:
    """The failure on another agent is the one that is reported."""
    known = part()
    task, own = await waiting(known), told(known)
    known.stop.ask("kill", "rank 3: ValueError")
    await task
    assert told(known) == own._replace(message="rank 3: ValueError")


def test_what_failed_elsewhere_before_the_processes_ended_is_why() -> None:
    """Whatever they printed; but a refusal of hyperparameters is the run's own."""
    known = part("ValueError: no data")
    known.elsewhere = "rank 3: KeyError"
    assert (told(known).outcome, told(known).message) == ("failed", "rank 3: KeyError")
    refused = Conduct(refusal="too large")
    known.exits, known.conduct = [known.exits[0]._replace(conduct=refused)], refused
    assert (told(known).outcome, told(known).message) == ("invalid_hp", "rank 0: too large")


@pytest.mark.parametrize("words", ["Connection closed by peer", "ValueError"])
async def test_a_part_that_a_machine_elsewhere_failed_says_so(words: str) -> None:
    """Whatever its own words are: the searcher may read of this part first."""
    known = part(words)
    known.stop.ask("kill", "rank 3: the disk is full", machine=True)
    await wait_for_news(known)
    assert (told(known).outcome, told(known).machine) == ("failed", True)


async def test_a_machine_that_failed_a_part_is_told_in_time() -> None:
    """A part whose own disk failed does not wait; others wait for longer than that takes."""
    known = part()
    known.disk = "the disk is full"
    await asyncio.wait_for(wait_for_news(known), 1)
    assert told(known).machine
    assert told(known).message.startswith("the disk is full (rank 0: ")
    assert ANSWERS_WITHIN_S + DISK_WAIT_S < NEWS_WAIT_S


async def test_to_be_asked_to_leave_explains_no_failure() -> None:
    """A run that was to checkpoint when it lost a rank waits for news of that all the same."""
    known = part()
    known.stop.ask("preempt", "")
    task = await waiting(known)
    known.stop.ask("kill", "")
    await task
    assert told(known).outcome == "killed"


async def test_an_agent_that_goes_down_does_not_wait() -> None:
    """The run is lost with it, which the scheduler writes."""
    known = part()
    task = await waiting(known)
    known.stop.leave()
    await task
    assert ending_of(known) is None


async def test_a_failure_of_its_own_is_told_at_once() -> None:
    """A part whose words have the cause does not wait, and a kill does not change them."""
    known = part("ValueError: no data")
    own = told(known)
    await asyncio.wait_for(wait_for_news(known), 1)
    assert told(known) == own
    known.stop.ask("kill", "")
    assert told(known) == own


async def test_without_news_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it is clear that no agent was lost; until then one would be known to be."""
    assert Settings().agent_timeout + 10 < NEWS_WAIT_S
    monkeypatch.setattr(module, "NEWS_WAIT_S", 0.01)
    known = part()
    own = told(known)
    await wait_for_news(known)
    assert told(known) == own


def test_a_checkpoint_that_was_not_uploaded_fails_what_ended_well() -> None:
    """The searcher must not count on it; a failure of the script keeps its own words."""
    known = Evidence(exits=[Exit(0, Exited("a", 0, None))], not_uploaded="no room")
    assert told(known) == Ending("failed", 0, None, "no room")
    known.disk = "the disk is full"
    assert told(known).message == "the disk is full (no room)"
    known = Evidence(exits=[failed("ValueError", ())], not_uploaded="no room")
    assert told(known).message == "ValueError (exit code 1)"


def test_the_first_failure_of_several_counts_unless_it_follows_from_another() -> None:
    """What was stopped because of it counts by its traceback alone, if it printed one."""
    lost = failed("ConnectionError: Connection closed by peer", ())
    stopped = Exit(1, Exited("b", None, 15), error_line="step 3")
    cause = Exit(2, Exited("c", None, 15), Conduct(), "ValueError: x", "ValueError: x")
    known = Evidence(exits=[lost, stopped], ranked=True, stopped_by=frozenset({15, 9}))
    assert told(known).message.startswith("rank 0: ConnectionError")
    known.exits = [lost, stopped, cause]
    assert told(known).message.startswith("rank 2: ValueError: x (killed by signal 15")


def test_of_several_without_a_failure_the_gravest_end_counts() -> None:
    """One rank that was killed makes it a run that was killed."""
    ends = [Exit(0, Exited("a", 0, None)), Exit(1, Exited("b", None, 9))]
    conduct = Conduct(sent_sigkill="killed, as asked")
    known = Evidence(
        exits=[end._replace(conduct=conduct) for end in ends], conduct=conduct, ranked=True
    )
    assert told(known) == Ending("killed", None, 9, "rank 1: killed, as asked")


@pytest.mark.parametrize(
    ("stop", "outcome", "message"),
    [
        (("kill", ""), "killed", "withdrawn before it started"),
        (("preempt", ""), "preempted", "withdrawn before it started"),
        (("kill", "rank 3: KeyError"), "failed", "rank 3: KeyError"),
    ],
)
def test_withdrawn_before_it_started(
    stop: tuple[Withdrawal, str], outcome: ExitOutcome, message: str
) -> None:
    """It ends as the scheduler wanted; as a failure where another part failed."""
    known = Evidence()
    known.stop.ask(*stop)
    known.elsewhere = known.stop.reason
    assert told(known) == Ending(outcome, None, None, message)


def test_what_could_not_start_failed() -> None:
    """In the words of the reason, with its fault."""
    known = Evidence(unstarted="the run could not start: no code", unstarted_fault="code")
    assert told(known) == Ending("failed", None, None, "the run could not start: no code", "code")


def test_what_is_lost_has_no_ending() -> None:
    """The scheduler declares it lost by itself."""
    assert ending_of(Evidence(lost=True, exits=[failed("ValueError", ())])) is None


def test_a_hang_is_a_fault_of_its_own() -> None:
    """It was killed for it, which is a failure."""
    conduct = Conduct(hung="it hangs")
    known = Evidence(exits=[Exit(0, Exited("a", None, 9), conduct)], conduct=conduct)
    assert told(known) == Ending("failed", None, 9, "it hangs", "hang")
