"""Runs pipelines of DataTrove steps in a child process, and reports how far they are."""

import contextlib
import errno
import os
import pickle
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from datatrove.pipeline.base import PipelineStep

from pipeline_config import errors
from pipeline_config.environment import home
from pipeline_config.executors import ExecutorSettings
from pipeline_config.processes import bound_command
from tasks.engines import keep_tasks, make_executor, stop
from tasks.steps.ranks import EXECUTOR_FILE, heard_cause
from tasks.store import disk_problem

POLL_SECONDS = 0.05
OUTPUT_TAIL_CHARACTERS = 12_000
SMALLEST_FILE_BYTES = 65_536
LOCAL = ExecutorSettings()


def run_pipeline(
    steps: Sequence[PipelineStep],
    *,
    tasks: int,
    workers: int,
    logging_dir: Path,
    settings: ExecutorSettings = LOCAL,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Runs the steps once for each of `tasks` ranks, at most `workers` at once.

    Ranks that `logging_dir` lists as complete are not run again, so the folder belongs to one stage key.

    Raises:
        TokenmillError: what a step raised on purpose, as it was.
        SettingsError: what the executor needs is not installed.
        StageError: a worker died or raised anything else; the message ends with its output.
    """
    executor = make_executor(steps, settings, tasks=tasks, workers=workers, folder=logging_dir)
    logging_dir.mkdir(parents=True, exist_ok=True)
    keep_tasks(logging_dir, tasks)
    file = logging_dir / EXECUTOR_FILE
    file.write_bytes(pickle.dumps(executor))
    try:
        run_child(bound_command("tasks.steps.run_executor", str(file)), on_poll=on_poll)
    except BaseException as failure:
        stop(executor)
        if isinstance(failure, ChildFailed):
            raise _cause(failure) from None
        raise


class ChildFailed(Exception):
    """A child process ended with another exit code than 0."""

    def __init__(self, returncode: int, output: str):
        super().__init__(f"exit code {returncode}")
        self.returncode = returncode
        self.output = output


def run_child(
    command: Sequence[str],
    *,
    on_poll: Callable[[], None] = lambda: None,
    environment: dict[str, str] | None = None,
) -> str:
    """Runs a command to its end and returns what it printed; `on_poll` is called 20 times a second.

    However this function is left, the command and all its descendants are gone.

    Raises:
        ChildFailed: the command's exit code was not 0.
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
        try:
            while child.poll() is None:
                on_poll()
                time.sleep(POLL_SECONDS)
            on_poll()
        finally:
            _kill_all(child)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if child.returncode:
        raise ChildFailed(child.returncode, text[-OUTPUT_TAIL_CHARACTERS:])
    return text


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


def _cause(failure: ChildFailed) -> errors.TokenmillError:
    store = home() / "store"
    said = [cause for line in failure.output.splitlines() if (cause := heard_cause(line))]
    if not said:
        if shutil.disk_usage(home()).free < SMALLEST_FILE_BYTES:
            return errors.StoreError(str(disk_problem(OSError(errno.ENOSPC, ""), store)))
        how = f"was killed by signal {-failure.returncode}" if failure.returncode < 0 else str(failure)
        return errors.StageError(f"a worker process ended early ({how}). Its last output:\n{failure.output}")
    cause = said[-1]
    if cause.get("errno") is not None:
        error = OSError(cause["errno"], "", cause["filename"] or None)
        if problem := disk_problem(error, store):
            return errors.StoreError(problem)
    known = getattr(errors, cause["type"], None)
    if known is not None:
        return known(cause["message"])
    return errors.StageError(f"a worker process failed with {cause['type']}: {cause['message']}")
