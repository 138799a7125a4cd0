"""Runs a pickled DataTrove executor: `python -m tasks.steps.engines.run_executor FILE [RANK ...]`.

A process of its own keeps DataTrove's workers small (they have what this process imported, not the flow) and
makes the whole tree of them killable. What went wrong is a line of its output, for the parent to raise.
With ranks it runs these, one after the other; without, it sees to all of them: in processes below it, or as
tasks of a cluster, which it drives.
"""

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from pathlib import Path
from typing import Any

from datatrove.executor.local import LocalPipelineExecutor

from pipeline_config import errors
from tasks.steps.engines.ranks import say_cause


def main(path: Path, ranks: Sequence[int] = ()) -> int:
    """Runs the executor; the exit code is 0, or 1 with the cause in a line of its own."""
    try:
        executor = pickle.loads(path.read_bytes())
        if not ranks and not isinstance(executor, LocalPipelineExecutor):
            signal.signal(signal.SIGTERM, _stop)
            executor.drive()
        elif not ranks and executor.workers > 1:
            run_ranks(executor)
        else:  # DataTrove's `run` would start a process that outlives this one when it is killed
            for rank in ranks or executor.get_incomplete_ranks():
                _run_rank(executor, rank)
    except BaseException as error:
        say_cause(error)
        return 1
    return 0


def run_ranks(executor: Any) -> None:
    """Runs the executor's incomplete ranks on its number of workers.

    DataTrove's own pool waits for ever for the task of a worker that was killed.

    Raises:
        EngineError: a worker was killed.
    """
    # Forks a process with one thread, which has imported all that the workers need.
    context = multiprocessing.get_context("fork")
    ranks = executor.get_incomplete_ranks()
    with ProcessPoolExecutor(executor.workers, mp_context=context) as pool:
        try:
            for done in as_completed([pool.submit(_run_rank, executor, rank) for rank in ranks]):
                done.result()
        except BrokenProcessPool:
            raise errors.EngineError("a worker process was killed, perhaps for want of memory") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_rank(executor: Any, rank: int) -> None:
    deepcopy(executor)._run_for_rank(rank)


def _stop(*_: object) -> None:
    """On SIGTERM a driver takes back what it started; a second signal must not keep it from that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), [int(rank) for rank in sys.argv[2:]])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # other workers may still be in the middle of a shard: the parent ends them
