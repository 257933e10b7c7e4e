"""Why runs fail, told from their last words."""

import pytest

from rung.agent.fault import SIGNS, fault_of
from rung.agent.wire import Exited


def exited(code: int | None = 1, signal: int | None = None) -> Exited:
    """Return the end of a main process."""
    return Exited("e.0.1", code, signal, 0)


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
    assert fault_of(exited(), words, [words], starved=False).kind == kind


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
        assert fault_of(exited(), words, known, starved=False).kind == kind
    logged = f"W0000 op_kernel.cc:1858] OP_REQUIRES failed : RESOURCE_EXHAUSTED: {said}"
    assert fault_of(exited(None, 6), "", [logged], starved=False).kind == kind


def test_every_sentence_has_a_remedy() -> None:
    """Each sign has a kind of its own, and says what is wrong and what to do."""
    assert len({sign.kind for sign in SIGNS}) == len(SIGNS)
    for sign in SIGNS[:-3]:
        assert ": " in sign.sentence, sign


def test_names_are_filled_in() -> None:
    """What is missing is named."""
    fault = fault_of(exited(), "ModuleNotFoundError: No module named 'einops'", [], starved=False)
    assert fault.sentence.startswith("the module einops is not there")


def test_last_lines_count_where_there_is_no_exception() -> None:
    """A process that aborted in C says why on stderr, and often more behind that."""
    lines = [
        "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        "terminate called without an active exception",
        "",
    ]
    assert fault_of(exited(None, 6), "", lines, starved=False).kind == "nccl"
    assert fault_of(exited(None, 6), "", [], starved=False).kind == "signal 6"


def test_what_was_caught_before_the_exception_does_not_count() -> None:
    """Only the last exception and what follows it tell why; a warning before it does not."""
    lines = ["warning: No space left on device, going on", "ValueError: no", "NCCL error: remote"]
    assert fault_of(exited(), "ValueError: no", lines[:2], starved=False).kind == "ValueError"
    assert fault_of(exited(), "ValueError: no", lines, starved=False).kind == "nccl"


@pytest.mark.parametrize("number", [1, 2, 9, 15])
def test_signals_from_outside_have_no_kind(number: int) -> None:
    """Anybody may have sent them, so they are never counted as the same fault."""
    assert fault_of(exited(None, number), "", [], starved=False).kind == ""


def test_killed_while_memory_was_short() -> None:
    """A SIGKILL that nobody here sent, while the kernel killed for memory, was that."""
    fault = fault_of(exited(None, 9), "", [], starved=True)
    assert fault.kind == "host_memory"
    assert "ran out of memory" in fault.sentence
