"""Work behind the script's back: one piece at a time, its failure told at the next occasion."""

import threading
from collections.abc import Callable


class Behind:
    """Does what it is given in a thread of its own.

    The thread outlives the script's last line, so that what was begun is completed.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._awaited_at_exit = False
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being done."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Have something done; wait before that until what was begun earlier is complete.

        Raises:
            BaseException: what was begun earlier failed with it.
        """
        self.wait()
        self._be_awaited_at_exit()
        self._thread = threading.Thread(target=self._do, args=(work,), name="rung-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being done.

        Raises:
            BaseException: what was begun failed with it; it is raised once.
        """
        self._join()
        self._thread = None
        self.check()

    def check(self) -> None:
        """Raise what an earlier piece of work failed with, if one did; waits for nothing."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _be_awaited_at_exit(self) -> None:
        """Be complete before thread pools, which the work may want, close at the exit.

        They are closed before the interpreter waits for its threads.
        """
        if not self._awaited_at_exit:
            self._awaited_at_exit = True
            register: Callable[[Callable[[], None]], None] = threading._register_atexit  # type: ignore[attr-defined]  # noqa: SLF001 - as concurrent.futures does
            register(self._join)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where somebody can hear it
            self._error = error
