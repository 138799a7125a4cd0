"""What the processes that run ranks and those that start them agree on.

An executor lies pickled in its logging folder; a process that fails says why in one line of its output (a
file for it could not be written to a full disk), as plain data that another process can raise.
"""

import json
import os
import sys
import traceback
from typing import Any

from pipeline_config import errors

EXECUTOR_FILE = "executor.pickle"
CAUSE = "tokenmill-cause "
TRACEBACK_CHARACTERS = 4000


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
