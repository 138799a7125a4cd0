"""Child processes: run to their end, watched, logged and limited, and gone however they are left."""

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline_config.errors import LimitError

POLL_SECONDS, MEMORY_SECONDS = 0.05, 2.0
OUTPUT_TAIL_CHARACTERS = 12_000
LINES_PER_SECOND, LINE_CHARACTERS, CHUNK_BYTES, LONGEST_LINE_BYTES = 20, 1000, 1 << 16, 1 << 20
GIGABYTE = 1e9


class ChildFailed(Exception):
    """A child process ended with another exit code than 0."""

    def __init__(self, returncode: int, output: str):
        super().__init__(f"exit code {returncode}")
        self.returncode = returncode
        self.output = output


@dataclass(frozen=True)
class Rules:
    """What a child may use, and what is done with the lines that it prints.

    Args:
        deadline: time (`time.monotonic`) at which it is stopped, if it still runs.
        max_seconds: the limit that `deadline` follows from, for the message.
        max_memory_bytes: memory of the child and its descendants together.
        level_of: the level of a line; 0 drops it.
        log: gets what is printed, a line at a time with its level, at a bounded rate.
    """

    deadline: float = float("inf")
    max_seconds: int | None = None
    max_memory_bytes: int | None = None
    log: Callable[[int, str], None] = lambda level, line: None
    level_of: Callable[[str], int] = lambda line: logging.INFO


def run_child(
    command: Sequence[str],
    *,
    on_poll: Callable[[], None] = lambda: None,
    environment: dict[str, str] | None = None,
    rules: Rules = Rules(),
    grace_seconds: float = 0.0,
) -> str:
    """Runs a command to its end and returns what it printed; `on_poll` is called 20 times a second.

    However this function is left, the command and all its descendants are gone.

    Args:
        grace_seconds: how long a child that is stopped may take to save what it has, after SIGTERM.

    Raises:
        ChildFailed: the command's exit code was not 0.
        LimitError: it ran for too long, or used too much memory.
    """
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        lines, memory = _Lines(output.fileno(), rules), _Memory(child.pid, rules)
        try:
            while child.poll() is None:
                on_poll()
                lines.read()
                memory.check()
                if time.monotonic() > rules.deadline:
                    raise LimitError(_too_long(rules))
                time.sleep(POLL_SECONDS)
            on_poll()
        finally:
            try:
                if grace_seconds and child.poll() is None:
                    _ask_to_end(child, grace_seconds)
            finally:
                _kill_all(child)
                lines.read(all_of_it=True)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if child.returncode:
        raise ChildFailed(child.returncode, text[-OUTPUT_TAIL_CHARACTERS:])
    return text


def _too_long(rules: Rules) -> str:
    return (
        f"stopped after execution.max_stage_seconds={rules.max_seconds}. What was finished is kept: a rerun "
        "with a higher limit, or more execution.workers, goes on from there"
    )


class _Lines:
    """Passes on what a child prints, without moving the place at which it writes."""

    def __init__(self, file: int, rules: Rules):
        self.file, self.rules = file, rules
        self.position, self.rest = 0, b""
        self.allowance, self.withheld, self.last = float(LINES_PER_SECOND), 0, time.monotonic()

    def read(self, all_of_it: bool = False) -> None:
        """Passes on the lines that are complete; the last line, too, if nothing comes any more."""
        while chunk := os.pread(self.file, CHUNK_BYTES, self.position):
            self.position += len(chunk)
            *lines, self.rest = (self.rest + chunk).replace(b"\r", b"\n").split(b"\n")
            if len(self.rest) > LONGEST_LINE_BYTES:
                lines, self.rest = [*lines, self.rest], b""
            for line in lines:
                self._pass(line)
            if not all_of_it:
                break
        if all_of_it:
            self._pass(self.rest)
            self.rest = b""
            self._tell_of_withheld()

    def _pass(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        level = self.rules.level_of(text) if text else 0
        if not level:
            return
        now = time.monotonic()
        self.allowance = min(LINES_PER_SECOND, self.allowance + LINES_PER_SECOND * (now - self.last))
        self.last = now
        if self.allowance < 1:
            self.withheld += 1
            return
        self._tell_of_withheld()
        self.allowance -= 1
        self.rules.log(level, text[:LINE_CHARACTERS])

    def _tell_of_withheld(self) -> None:
        if self.withheld:
            self.rules.log(logging.INFO, f"({self.withheld} lines more came too fast to be shown)")
            self.withheld = 0


class _Memory:
    """Watches the memory of a process and its descendants."""

    def __init__(self, root: int, rules: Rules):
        self.root, self.limit = root, rules.max_memory_bytes
        self.next = time.monotonic()

    def check(self) -> None:
        """Raises LimitError if it is too much."""
        if self.limit is None or time.monotonic() < self.next:
            return
        self.next = time.monotonic() + MEMORY_SECONDS
        used = sum(map(_memory_bytes, [self.root, *_descendants(self.root)]))
        if used > self.limit:
            raise LimitError(
                f"stopped with {used / GIGABYTE:.2f} GB of memory in use, more than "
                f"execution.max_stage_memory_bytes={self.limit} ({self.limit / GIGABYTE:.2f} GB). "
                "Allow more, or take fewer execution.workers"
            )


def _memory_bytes(process: int) -> int:
    """Memory of a process; what it shares with others counts in part. Source: proc(5), smaps_rollup, Pss."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _ask_to_end(child: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Kills the child's process group, and descendants that left it, as torchrun's workers do."""
    descendants = _descendants(child.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in descendants:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    child.wait()


def _descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]
