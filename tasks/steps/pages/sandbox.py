"""Runs functions on pages in a child process with limits on CPU time and memory.

CPU time, never wall clock: a result must not depend on how busy the machine is. Pages go to the child in
batches and their results come back one by one, so the page that the child died of is known. It is tried once
more on a fresh child, then by the next function, if there is one; a page that breaks that too has failed.
"""

import gc
import multiprocessing
import resource
import signal
from collections.abc import Callable, Sequence
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
    """Calls functions on pages in a child process that is kept from page to page.

    Args:
        functions: the first is called on every page, each other one on the pages that those before it failed
            on. They are forked into the child, results are pickled.
    """

    def __init__(
        self,
        functions: Callable[[Any], Any] | Sequence[Callable[[Any], Any]],
        cpu_seconds: float,
        memory_bytes: int,
    ):
        self.functions = (functions,) if callable(functions) else tuple(functions)
        self.cpu_seconds = cpu_seconds
        self.memory_bytes = memory_bytes
        self.child: multiprocessing.process.BaseProcess | None = None
        self.connection: Connection | None = None
        self.pages = 0

    def __call__(self, payload: Any) -> Any:
        """The result for one page.

        Raises:
            PageFailed: the page exceeded a limit, or the function raised.
        """
        [result] = self.map([payload])
        if isinstance(result, PageFailed):
            raise result
        return result

    def map(self, payloads: Sequence[Any]) -> list[Any]:
        """Each page's result, or the `PageFailed` that it ended in."""
        results: list[Any] = []
        while len(results) < len(payloads):
            answers = self._attempt(payloads[len(results) :], 0)
            failure = answers.pop() if answers and isinstance(answers[-1], PageFailed) else None
            results += answers
            if failure is not None:
                results.append(self._again(payloads[len(results)], failure))
        return results

    def close(self) -> None:
        """Ends the child."""
        if self.child is not None:
            self.connection.close()
            self.child.kill()
            self.child.join()
            self.child = None

    def _again(self, payload: Any, failure: PageFailed) -> Any:
        """What becomes of a page that failed once: one more try after a kill, then the other functions."""
        for rung in range(len(self.functions)):
            attempts = 2 if rung else 1
            while attempts and (rung or isinstance(failure, LimitExceeded)):
                if isinstance(failure, LimitExceeded):
                    self.close()
                [answer] = self._attempt([payload], rung)
                if not isinstance(answer, PageFailed):
                    return answer
                failure = answer
                attempts = attempts - 1 if isinstance(answer, LimitExceeded) else 0
        return failure

    def _attempt(self, payloads: Sequence[Any], rung: int) -> list[Any]:
        """Results in order, up to the first page that fails: its `PageFailed` is the last one."""
        if self.child is None or self.pages >= PAGES_PER_CHILD:
            self.close()
            self._start()
        payloads = payloads[: PAGES_PER_CHILD - self.pages]
        results: list[Any] = []
        try:
            self.connection.send((rung, payloads))
            for _ in payloads:
                self.pages += 1
                succeeded, result = self.connection.recv()
                if not succeeded:
                    kind = LimitExceeded if result == MEMORY_LIMIT else PageFailed
                    return [*results, kind(result)]
                results.append(result)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.child.join()
            cause = SIGNAL_CAUSES.get(-self.child.exitcode, f"exit_{self.child.exitcode}")
            self.close()
            return [*results, LimitExceeded(cause)]
        return results

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
                rung, payloads = connection.recv()
            except EOFError:
                return
            self._answer_all(connection, self.functions[rung], payloads)

    def _answer_all(self, connection: Connection, function: Callable[[Any], Any], payloads: list) -> None:
        """Answers page by page, and leaves the rest of the batch to the parent after one that failed."""
        for payload in payloads:
            signal.setitimer(signal.ITIMER_PROF, self.cpu_seconds)
            answer = _answer(function, payload)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(answer)
            if not answer[0]:
                return


def _answer(function: Callable[[Any], Any], payload: Any) -> tuple[bool, Any]:
    try:
        return True, function(payload)
    except MemoryError:
        return False, MEMORY_LIMIT
    except RecursionError:
        return False, "recursion_limit"
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"[:300]


def _address_space_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
