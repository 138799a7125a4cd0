"""Runs a function on one page at a time in a child process with limits on CPU time and memory.

CPU time, never wall clock: a result must not depend on how busy the machine is. A page that breaks its
child is tried once more on a fresh one; a page that breaks that too has failed, and costs only itself.
"""

import gc
import multiprocessing
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pipeline_config.processes import die_with_parent

MEMORY_LIMIT = "memory_limit"
PAGES_PER_CHILD = 1000  # a fresh child now and then bounds what leaks
SIGNAL_CAUSES = {signal.SIGPROF: "cpu_limit", signal.SIGKILL: "killed", signal.SIGSEGV: "crashed"}


class PageFailed(Exception):
    """A page that could not be processed; the first argument is the reason."""


class LimitExceeded(PageFailed):
    """A page that broke its child, or filled its memory: worth one more try on a fresh one."""


class PageSandbox:
    """Calls `function(payload)` in a child process; the child is kept from page to page."""

    def __init__(self, function: Callable[[Any], Any], cpu_seconds: float, memory_bytes: int):
        self.function = function
        self.cpu_seconds = cpu_seconds
        self.memory_bytes = memory_bytes
        self.child: multiprocessing.process.BaseProcess | None = None
        self.connection: Connection | None = None
        self.pages = 0

    def __call__(self, payload: Any) -> Any:
        """The function's result.

        Raises:
            PageFailed: the page exceeded a limit, or the function raised.
        """
        try:
            return self._attempt(payload)
        except LimitExceeded:
            self.close()
            return self._attempt(payload)

    def close(self) -> None:
        """Ends the child."""
        if self.child is not None:
            self.connection.close()
            self.child.kill()
            self.child.join()
            self.child = None

    def _attempt(self, payload: Any) -> Any:
        if self.child is None or self.pages >= PAGES_PER_CHILD:
            self.close()
            self._start()
        self.pages += 1
        try:
            self.connection.send(payload)
            succeeded, result = self.connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.child.join()
            cause = SIGNAL_CAUSES.get(-self.child.exitcode, f"exit_{self.child.exitcode}")
            self.close()
            raise LimitExceeded(cause) from None
        if result == MEMORY_LIMIT and not succeeded:
            raise LimitExceeded(MEMORY_LIMIT)
        if not succeeded:
            raise PageFailed(result)
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.child = context.Process(target=self._serve, args=(theirs, self.connection), daemon=True)
        self.child.start()
        theirs.close()
        self.pages = 0

    def _serve(self, connection: Connection, parents: Connection) -> None:
        parents.close()
        die_with_parent(multiprocessing.parent_process().pid)
        limit = _address_space_bytes() + self.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        gc.freeze()
        while True:
            try:
                payload = connection.recv()
            except EOFError:
                return
            signal.setitimer(signal.ITIMER_PROF, self.cpu_seconds)
            answer = self._answer(payload)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(answer)

    def _answer(self, payload: Any) -> tuple[bool, Any]:
        try:
            return True, self.function(payload)
        except MemoryError:
            return False, MEMORY_LIMIT
        except RecursionError:
            return False, "recursion_limit"
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"[:300]


def _address_space_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
