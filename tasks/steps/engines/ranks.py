"""What the processes that run ranks and those that start them agree on.

An executor lies pickled in its logging folder; a process that fails says why in one line of its output (a
file for it could not be written to a full disk), as plain data that another process can raise.
"""

import json
import os
import platform
import subprocess
import sys
import traceback
from collections import deque
from pathlib import Path
from typing import Any

from pipeline_config import errors
from pipeline_config.processes import bound_command

EXECUTOR_FILE = "executor.pickle"
CAUSE = "tokenmill-cause "
TRACEBACK_CHARACTERS = 4000
OUTPUT_TAIL_LINES = 40
SHARED = "the data folder and the folder that the flow was started in must be on a shared file system"


class TaskLost(Exception):
    """The process that ran a task's ranks was killed: the task is worth another try elsewhere."""


class RankFailed(Exception):
    """A rank failed in another process; `cause` is what that process said of it."""

    def __init__(self, cause: dict[str, Any]):
        super().__init__(cause["message"])
        self.cause = cause


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data."""
    if isinstance(error, RankFailed):
        return error.cause
    cause: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if not isinstance(error, errors.TokenmillError):
        cause["message"] = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]
        cause["may_pass"] = errors.may_pass(error)
    if isinstance(error, OSError):
        cause |= {"errno": error.errno, "filename": os.fsdecode(error.filename or "")}
    return cause


def say_cause(error: BaseException) -> None:
    """Writes the line that says why this process fails."""
    print(f"\n{CAUSE}{json.dumps(describe(error))}", file=sys.stderr)


def heard_cause(line: str) -> dict[str, Any] | None:
    """The cause that a line of a process's output says, or None."""
    if not line.startswith(CAUSE):
        return None
    try:
        return json.loads(line.removeprefix(CAUSE))
    except ValueError:
        return None


def run_in_child(file: str, ranks: list[int], folder: str) -> dict[str, Any] | None:
    """Runs ranks of an executor in a child process. Returns the cause if one of them failed.

    Raises:
        TaskLost: the child was killed.
    """
    for path in (folder, file):
        if not Path(path).exists():
            return describe(errors.EngineError(f"node {platform.node()} has no {path}: {SHARED}"))
    command = bound_command("tasks.steps.engines.run_executor", file, *map(str, ranks))
    cause, tail = None, deque(maxlen=OUTPUT_TAIL_LINES)
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:
        try:
            for line in child.stdout:
                said = heard_cause(line)
                cause = said or cause
                tail.append(line)
                if not said:
                    print(line, end="", flush=True)
        finally:
            child.kill()
    if child.returncode and cause is None:
        how = f"was killed by signal {-child.returncode}" if child.returncode < 0 else "ended early"
        raise TaskLost(f"a process on node {platform.node()} {how}. Its last output:\n{''.join(tail)}")
    return cause
