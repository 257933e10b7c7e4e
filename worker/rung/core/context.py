"""`core.init`: from a script to its run."""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rung.core import link as links
from rung.core import local, protocol, stacks
from rung.core.checkpoint import CheckpointContext
from rung.core.data import DataContext
from rung.core.distributed import DistributedContext, Place, from_environment
from rung.core.errors import AgentGone, InvalidHP
from rung.core.goal import Goal
from rung.core.info import Info, trial_info
from rung.core.link import AgentLink, Link
from rung.core.preempt import PreemptContext
from rung.core.protocol import Hello, HparamsRefused, Welcome
from rung.core.staging import StagedStore
from rung.core.train import TrainContext
from rung.events.trial import RunSpec
from rung.storage import FolderStore, ObjectStore, open_store


class Context:
    """A run as its script sees it; `init` makes one.

    Attributes:
        train: reports metrics.
        checkpoint: stores and restores checkpoints.
        preempt: says when to leave.
        distributed: the other processes of the run, where it has several slots.
        data: the paths of the experiment's data sources.
        info: what there is to know about the run.
    """

    def __init__(
        self,
        link: Link,
        store: ObjectStore,
        spec: RunSpec,
        info: Info,
        distributed: DistributedContext | None = None,
    ) -> None:
        self._link = link
        self._resources = contextlib.ExitStack()
        self._resources.callback(link.close)
        parent = Path.cwd() if info.managed else None
        scratch = tempfile.mkdtemp(prefix=".rung-", dir=parent)
        self._resources.callback(shutil.rmtree, scratch, ignore_errors=True)
        self.distributed = distributed or DistributedContext(Place())
        self._resources.callback(self.distributed.close)
        ranks = self.distributed
        goal = Goal(spec, tells=ranks.is_chief)
        self.train = TrainContext(link, goal, reports=ranks.is_chief)
        self.checkpoint = CheckpointContext(link, store, spec, Path(scratch), ranks)
        self._resources.callback(self.checkpoint.wait)
        self.preempt = PreemptContext(link, goal, ranks)
        self.data = DataContext(spec.config, managed=info.managed)
        self.info = info
        self._pid = os.getpid()
        atexit.register(self._close_at_exit)

    @property
    def hparams(self) -> dict[str, Any]:
        """The trial's hyperparameters."""
        return self.info.trial.hparams

    @property
    def seed(self) -> int:
        """The trial's seed, the same in each of its runs."""
        return self.info.trial.seed

    def close(self) -> None:
        """Store and send what is still to be stored and sent, and let go of the run.

        Raises:
            ObjectError: a checkpoint could not be stored.
        """
        if os.getpid() == self._pid:
            atexit.unregister(self._close_at_exit)
            try:
                self._resources.close()
            finally:
                _connection.drop()

    def _close_at_exit(self) -> None:
        """Close what the script left open; a checkpoint that is lost fails the run even so."""
        try:
            self.close()
        except Exception:  # noqa: BLE001 - whatever it is, nobody else would hear it
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
            self._link.send(HparamsRefused(str(error) or "the script refused its hyperparameters"))
        self.close()


class _Connection:
    """The process's one link to its agent, made at the first need."""

    def __init__(self) -> None:
        self._made: tuple[AgentLink, Welcome, Info] | None = None
        self._info: Info | None = None
        self._pid = 0

    def get(self) -> tuple[AgentLink, Welcome, Info]:
        """Return the link; a forked child gets one of its own."""
        if self._made is None or self._pid != os.getpid():
            self._made, self._pid = _connect(), os.getpid()
            self._info = self._made[2]
        return self._made

    def info(self) -> Info:
        """Return what the agent said, without asking twice."""
        return self._info or self.get()[2]

    def drop(self) -> None:
        """Forget the link, which is closed."""
        self._made = None


_connection = _Connection()


def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | Path | str | None = None,
    seed: int | None = None,
    restore: str | None = None,
    storage: Path | str | None = None,
) -> Context:
    """Return the run that this process is; use it as `with core.init() as ctx:`.

    Under Rung, everything comes from the platform and the arguments are not looked at. Started
    by hand (`python train.py`), the same script runs by itself: reports are shown, checkpoints
    go to a folder, and nothing ever asks it to leave.

    Args:
        hparams: the hyperparameters of a run by hand.
        config: the experiment file of a run by hand, or its content; gives the hyperparameters
            (the middle of every range), the length and the seed that are not given here.
        seed: the seed of a run by hand.
        restore: a checkpoint of an earlier run by hand to go on from.
        storage: where a run by hand keeps its checkpoints; `./rung-local` by default.
    """
    if managed():
        stacks.listen()
        link, welcome, info = _connection.get()
        return Context(link, _store_of(link, welcome), welcome.spec, info, from_environment())
    spec = local.local_spec(hparams, config, seed, restore)
    return Context(local.LocalLink(), _local_store(storage), spec, _local_info(spec))


def managed() -> bool:
    """Return whether Rung started this process."""
    return protocol.ALLOCATION_VARIABLE in os.environ


def get_info() -> Info | None:
    """Return what is known about the run before `init`; None where Rung does not manage it."""
    return _connection.info() if managed() else None


def _connect() -> tuple[AgentLink, Welcome, Info]:
    path = os.environ.get(protocol.SOCKET_VARIABLE)
    if not path:
        raise AgentGone(
            f"{protocol.ALLOCATION_VARIABLE} is set but {protocol.SOCKET_VARIABLE} is not; "
            "unset both to run the script by hand"
        )
    hello = Hello(
        allocation_id=os.environ[protocol.ALLOCATION_VARIABLE],
        token=os.environ.get(protocol.TOKEN_VARIABLE, ""),
        rank=int(os.environ.get(protocol.RANK_VARIABLE, "0")),
        pid=os.getpid(),
    )
    link, welcome = links.connect(path, hello)
    info = Info(
        managed=True,
        allocation_id=hello.allocation_id,
        agent_id=welcome.agent_id,
        slot_ids=welcome.slots,
        rank=hello.rank,
        trial=trial_info(welcome.spec),
    )
    return link, welcome, info


def _store_of(link: AgentLink, welcome: Welcome) -> ObjectStore:
    store = open_store(welcome.objects_url, within=welcome.within)
    if not welcome.staged:
        return store
    assert isinstance(store, FolderStore), welcome.objects_url
    return StagedStore(store, link)


def _local_store(storage: Path | str | None) -> ObjectStore:
    return FolderStore(Path(storage) if storage is not None else Path.cwd() / local.FOLDER)


def _local_info(spec: RunSpec) -> Info:
    return Info(
        managed=False,
        allocation_id=f"{spec.trial_id}.{spec.run}",
        agent_id="",
        slot_ids=[],
        rank=0,
        trial=trial_info(spec),
    )
