"""Runs a pickled DataTrove executor: `python -m tasks.steps.run_executor FILE`.

A process of its own keeps DataTrove's workers small (they have what this process imported, not the flow) and
makes the whole tree of them killable. What went wrong is a line of its output, for the parent to raise: a
file for it could not be written to a full disk.
"""

import json
import multiprocessing
import os
import pickle
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from pathlib import Path
from typing import Any

from pipeline_config import errors

CAUSE = "tokenmill-cause "
TRACEBACK_CHARACTERS = 4000


def main(path: Path) -> int:
    """Runs the executor; the exit code is 0, or 1 with the cause in a line of its own."""
    try:
        executor = pickle.loads(path.read_bytes())
        run_ranks(executor) if executor.workers > 1 else executor.run()
    except BaseException as error:
        print(f"\n{CAUSE}{json.dumps(describe(error))}", file=sys.stderr)
        return 1
    return 0


def run_ranks(executor: Any) -> None:
    """Runs the executor's incomplete ranks on its number of workers.

    DataTrove's own pool waits for ever for the task of a worker that was killed.

    Raises:
        StageError: a worker was killed.
    """
    # Forks a process with one thread, which has imported all that the workers need.
    context = multiprocessing.get_context("fork")
    ranks = executor.get_incomplete_ranks()
    with ProcessPoolExecutor(executor.workers, mp_context=context) as pool:
        try:
            for done in as_completed([pool.submit(_run_rank, executor, rank) for rank in ranks]):
                done.result()
        except BrokenProcessPool:
            raise errors.StageError("a worker process was killed, perhaps for want of memory") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_rank(executor: Any, rank: int) -> None:
    deepcopy(executor)._run_for_rank(rank)


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data."""
    cause: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if not isinstance(error, errors.TokenmillError):
        cause["message"] = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]
        cause["may_pass"] = errors.may_pass(error)
    if isinstance(error, OSError):
        cause |= {"errno": error.errno, "filename": os.fsdecode(error.filename or "")}
    return cause


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # other workers may still be in the middle of a shard: the parent ends them
