"""`core.init`, and the context of a run that it returns."""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rung.core import _agent_connection, _unmanaged_run
from rung.core._agent_connection import AgentConnection, Connection
from rung.core._checkpoint.context import CheckpointContext
from rung.core._checkpoint.staged_store import StagedStore
from rung.core._data import DataContext
from rung.core._determined import ProfilerContext, SearcherContext
from rung.core._distributed import DistributedContext, from_environment
from rung.core._info import Info, trial_info
from rung.core._preempt import PreemptContext
from rung.core._tensorboard import TensorboardFiles
from rung.core._train import TargetLength, TrainContext
from rung.core.errors import AgentGone, InvalidHP
from rung.core.ipc import environment, stack_dump_signal
from rung.core.ipc.environment import Place
from rung.core.ipc.protocol import Hello, HparamsRefused, Welcome
from rung.events.trial import RunSpec
from rung.storage import FolderStore, ObjectStore, open_store


class Context:
    """A run, for its script; returned by `init`.

    Attributes:
        train: reports metrics.
        checkpoint: stores and restores checkpoints.
        preempt: tells the script when to checkpoint and exit.
        distributed: the other processes of the run, where it has several slots.
        data: the paths of the experiment's data sources.
        info: the run's ids, hyperparameters, configuration and length.
        searcher: the run's length, by Determined's API.
        profiler: Determined's API; without effect, as the agent always measures.
    """

    def __init__(
        self,
        connection: Connection,
        store: ObjectStore,
        spec: RunSpec,
        info: Info,
        distributed: DistributedContext | None = None,
    ) -> None:
        self._connection = connection
        self._resources = contextlib.ExitStack()
        self._resources.callback(connection.close)
        parent = Path.cwd() if info.managed else None
        scratch = tempfile.mkdtemp(prefix=".rung-", dir=parent)
        self._resources.callback(shutil.rmtree, scratch, ignore_errors=True)
        self.distributed = distributed or DistributedContext(Place())
        self._resources.callback(self.distributed.close)
        ranks = self.distributed
        target = TargetLength(spec, tells=ranks.is_chief)
        tensorboard = TensorboardFiles(spec.trial_id, managed=info.managed)
        self.train = TrainContext(
            connection,
            target,
            reports=ranks.is_chief,
            metadata=spec.metadata,
            tensorboard=tensorboard,
            rank=ranks.rank,
        )
        self.checkpoint = CheckpointContext(
            connection, store, spec, Path(scratch), ranks, tensorboard
        )
        self.searcher = SearcherContext(info.trial, self.train, target)
        self.profiler = ProfilerContext(ranks)
        self._resources.callback(self.checkpoint.wait)
        self.preempt = PreemptContext(connection, target, ranks)
        self.data = DataContext(spec.config, managed=info.managed)
        self.info = info
        self._pid = os.getpid()
        self._at_success: list[Callable[[], None]] = []
        atexit.register(self._close_at_exit)

    @property
    def hparams(self) -> dict[str, Any]:
        """The trial's hyperparameters."""
        return self.info.trial.hparams

    @property
    def seed(self) -> int:
        """The trial's seed, the same in each of its runs."""
        return self.info.trial.seed

    def at_success(self, call: Callable[[], None]) -> None:
        """Register a function to call when the run's `with` block ends without an exception."""
        self._at_success.append(call)

    def close(self) -> None:
        """Complete what is being stored and sent, and end the run's connection.

        Raises:
            ObjectError: a checkpoint could not be stored.
        """
        if os.getpid() == self._pid:
            atexit.unregister(self._close_at_exit)
            try:
                self._resources.close()
            finally:
                _process_connection.drop()

    def _close_at_exit(self) -> None:
        """Close a context that the script left open; a lost checkpoint fails the run."""
        try:
            self.close()
        except Exception:  # noqa: BLE001 - whatever it is, it would be reported nowhere else
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if isinstance(error, InvalidHP):
            self._connection.send(
                HparamsRefused(str(error) or "the script refused its hyperparameters")
            )
        try:
            while error is None and self._at_success:
                self._at_success.pop()()
        finally:
            self.close()


class _ProcessConnection:
    """The process's connection to its agent, made at the first use."""

    def __init__(self) -> None:
        self._made: tuple[AgentConnection, Welcome, Info] | None = None
        self._info: Info | None = None
        self._pid = 0

    def get(self) -> tuple[AgentConnection, Welcome, Info]:
        """Return the connection; a forked child makes its own."""
        if self._made is None or self._pid != os.getpid():
            self._made, self._pid = _connect(attends=True), os.getpid()
            self._info = self._made[2]
        return self._made

    def info(self) -> Info:
        """Return the agent's description of the run, cached; keeps no connection."""
        if self._info is None:
            connection, _, self._info = _connect(attends=False)
            connection.close()
        return self._info

    def drop(self) -> None:
        """Forget the closed connection."""
        self._made = None


_process_connection = _ProcessConnection()


def init(  # noqa: PLR0913 - each has a default
    *,
    hparams: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | Path | str | None = None,
    seed: int | None = None,
    restore: str | None = None,
    storage: Path | str | None = None,
    distributed: DistributedContext | None = None,
) -> Context:
    """Return the context of this process's run; use it as `with core.init() as ctx:`.

    Under Rung, everything comes from the platform and the arguments are ignored. Started by hand
    (`python train.py`), the same script runs without Rung: reports are printed, checkpoints go to
    a folder, and it is never preempted.

    Args:
        hparams: the hyperparameters of an unmanaged run.
        config: the experiment file of an unmanaged run, or its content: the source of
            hyperparameters (the middle of every range), length and seed that are not given here.
        seed: the seed of an unmanaged run.
        restore: a checkpoint of an earlier unmanaged run from which to resume.
        storage: the folder for checkpoints of an unmanaged run; `./rung-local` by default.
        distributed: the ranks of this run, from `DistributedContext.from_torch_distributed` or
            similar; not needed under Rung.
    """
    if managed():
        stack_dump_signal.listen()
        connection, welcome, info = _process_connection.get()
        return Context(
            connection,
            _store_of(connection, welcome),
            welcome.spec,
            info,
            distributed or from_environment(),
        )
    spec = _unmanaged_run.unmanaged_spec(hparams, config, seed, restore)
    return Context(
        _unmanaged_run.UnmanagedConnection(),
        _local_store(storage),
        spec,
        _local_info(spec),
        distributed,
    )


def managed() -> bool:
    """Return whether Rung started this process."""
    return environment.ALLOCATION_VARIABLE in os.environ


def get_info() -> Info | None:
    """Return the run's information, also before `init`; None where Rung does not manage it."""
    return _process_connection.info() if managed() else None


def _connect(*, attends: bool) -> tuple[AgentConnection, Welcome, Info]:
    path = os.environ.get(environment.SOCKET_VARIABLE)
    if not path:
        raise AgentGone(
            f"{environment.ALLOCATION_VARIABLE} is set but {environment.SOCKET_VARIABLE} is not; "
            "unset both to run the script by hand"
        )
    hello = Hello(
        allocation_id=os.environ[environment.ALLOCATION_VARIABLE],
        token=os.environ.get(environment.TOKEN_VARIABLE, ""),
        rank=int(os.environ.get(environment.RANK_VARIABLE, "0")),
        pid=os.getpid(),
        attends=attends,
    )
    patience_s = float(os.environ.get(environment.UNATTENDED_VARIABLE, "0"))
    connection, welcome = _agent_connection.connect(path, hello, patience_s)
    info = Info(
        managed=True,
        allocation_id=hello.allocation_id,
        agent_id=welcome.agent_id,
        slot_ids=welcome.slots,
        rank=hello.rank,
        trial=trial_info(welcome.spec, welcome.secrets),
        latest_checkpoint=next(iter(welcome.spec.restore), None),
        container_rank=int(os.environ.get(environment.CROSS_RANK_VARIABLE, "0")),
    )
    return connection, welcome, info


def _store_of(connection: AgentConnection, welcome: Welcome) -> ObjectStore:
    store = open_store(welcome.objects_url, within=welcome.within)
    if not welcome.staged:
        return store
    assert isinstance(store, FolderStore), welcome.objects_url
    return StagedStore(store, connection)


def _local_store(storage: Path | str | None) -> ObjectStore:
    return FolderStore(
        Path(storage) if storage is not None else Path.cwd() / _unmanaged_run.FOLDER
    )


def _local_info(spec: RunSpec) -> Info:
    return Info(
        managed=False,
        allocation_id=f"{spec.trial_id}.{spec.run}",
        agent_id="",
        slot_ids=[],
        rank=0,
        trial=trial_info(spec),
        latest_checkpoint=next(iter(spec.restore), None),
    )
