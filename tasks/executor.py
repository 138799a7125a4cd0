"""Runs pipelines of DataTrove steps in a child process, and reports how far they are."""

import errno
import logging
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from datatrove.pipeline.base import PipelineStep

from pipeline_config import errors
from pipeline_config.environment import home
from pipeline_config.executors import ExecutorSettings
from pipeline_config.processes import bound_command
from tasks.child import ChildFailed, Rules, run_child
from tasks.engines import GRACE_SECONDS, keep_tasks, make_executor, stop
from tasks.steps.engines.ranks import CAUSE, EXECUTOR_FILE, heard_cause
from tasks.store import disk_problem

SMALLEST_FILE_BYTES = 65_536
LOCAL = ExecutorSettings()
# Source: loguru's default format; Ray puts the process in front of what it brings from other nodes
LOG_LINE = re.compile(
    r"(\([^)]*pid=[^)]*\) )?\d{4}-\d\d-\d\d [\d:.]+ \| (?P<level>[A-Z]+) +\| (?P<module>[^:]*):"
)


def run_pipeline(
    steps: Sequence[PipelineStep],
    *,
    tasks: int,
    workers: int,
    logging_dir: Path,
    settings: ExecutorSettings = LOCAL,
    on_poll: Callable[[], None] = lambda: None,
    rules: Rules = Rules(),  # noqa: B008
) -> None:
    """Runs the steps once for each of `tasks` ranks, at most `workers` at once.

    Ranks that `logging_dir` lists as complete are not run again, so the folder belongs to one stage key.

    Raises:
        TokenmillError: what a step raised on purpose, as it was.
        SettingsError: what the executor needs is not installed.
        UnreachableError: something beyond this machine did not answer.
        LimitError: the steps broke a rule.
        EngineError: a worker died; the message ends with its output.
        StageError: a worker raised anything else.
    """
    executor = make_executor(steps, settings, tasks=tasks, workers=workers, folder=logging_dir)
    logging_dir.mkdir(parents=True, exist_ok=True)
    keep_tasks(logging_dir, tasks)
    file = logging_dir / EXECUTOR_FILE
    file.write_bytes(pickle.dumps(executor))
    try:
        run_child(
            bound_command("tasks.steps.engines.run_executor", str(file)),
            on_poll=on_poll,
            rules=replace(rules, level_of=WorkerLines()),
            grace_seconds=GRACE_SECONDS[settings.kind],
        )
    except BaseException as failure:
        stop(executor)
        if isinstance(failure, ChildFailed):
            raise _cause(failure) from None
        raise


class WorkerLines:
    """Levels of the lines that DataTrove's workers print: what steps say and warnings, no banners.

    What its executors say is left out, too: their errors are raised in this process.
    """

    def __init__(self) -> None:
        self.level = logging.INFO

    def __call__(self, line: str) -> int:
        """The level of a line, 0 if it is not for people; lines without a level belong to the one before."""
        if line.startswith(CAUSE):
            return 0  # it is raised in this process
        if found := LOG_LINE.match(line):
            level = getattr(logging, found["level"], logging.INFO)
            ours = not found["module"].startswith("datatrove.")
            executors = found["module"].startswith("datatrove.executor.")
            self.level = level if ours or (level >= logging.WARNING and not executors) else 0
        return self.level


def _cause(failure: ChildFailed) -> errors.TokenmillError:
    store = home() / "store"
    said = [cause for line in failure.output.splitlines() if (cause := heard_cause(line))]
    if not said:
        if shutil.disk_usage(home()).free < SMALLEST_FILE_BYTES:
            return errors.StoreError(str(disk_problem(OSError(errno.ENOSPC, ""), store)))
        how = f"was killed by signal {-failure.returncode}" if failure.returncode < 0 else str(failure)
        return errors.EngineError(f"a worker process ended early ({how}). Its last output:\n{failure.output}")
    cause = said[-1]
    if cause.get("errno") is not None:
        error = OSError(cause["errno"], "", cause["filename"] or None)
        if problem := disk_problem(error, store):
            return errors.StoreError(problem)
    known = getattr(errors, cause["type"], None)
    if known is not None:
        return known(cause["message"])
    if cause["may_pass"]:
        return errors.UnreachableError(f"a worker process failed with {cause['type']}: {cause['message']}")
    return errors.StageError(f"a worker process failed with {cause['type']}: {cause['message']}")
