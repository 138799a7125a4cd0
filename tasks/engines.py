"""The engines of document stages: `execution.executor` mapped onto DataTrove's executors.

Only what is fixed before a stage begins is here. Driving a cluster is the business of the process that
`tasks.executor` starts: see `tasks/steps/engines/ray_tasks.py` and `tasks/steps/engines/slurm_jobs.py`.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from datatrove.executor.base import PipelineExecutor
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from pipeline_config.errors import SettingsError, StageError
from pipeline_config.executors import ExecutorSettings
from tasks.steps.engines.installation import SameInstallation
from tasks.steps.engines.ray_tasks import NOT_INSTALLED, RayExecutor
from tasks.steps.engines.slurm_jobs import SlurmExecutor, check_commands

# For a driver that is stopped to take back what it started; processes on this machine are simply killed.
GRACE_SECONDS = {"local": 0.0, "slurm": 8.0, "ray": 8.0}


def make_executor(
    steps: Sequence[PipelineStep], settings: ExecutorSettings, *, tasks: int, workers: int, folder: Path
) -> PipelineExecutor:
    """The executor that runs the steps on `tasks` ranks, at most `workers` at once.

    Args:
        folder: its logging folder, where it notes which ranks are complete.

    Raises:
        SettingsError: what the engine needs is not installed here.
    """
    workers = min(workers, tasks)
    match settings.kind:
        case "local":
            return LocalPipelineExecutor(list(steps), tasks=tasks, workers=workers, logging_dir=str(folder))
        case "slurm":
            check_commands()
            checked = [SameInstallation(), *steps]
            return SlurmExecutor(checked, settings.slurm, tasks=tasks, workers=workers, folder=folder)
        case "ray":
            if importlib.util.find_spec("ray") is None:
                raise SettingsError(NOT_INSTALLED)
            checked = [SameInstallation(), *steps]
            return RayExecutor(checked, settings.ray, tasks=tasks, workers=workers, folder=folder)


def stop(executor: PipelineExecutor) -> None:
    """Takes back what an executor started and its driver, killed, could not.

    Ray ends the tasks of a driver that is gone by itself.
    """
    if isinstance(executor, SlurmExecutor):
        executor.cancel()


def keep_tasks(folder: Path, tasks: int) -> None:
    """Notes in a logging folder on how many ranks its pipeline runs.

    Raises:
        StageError: it was begun with another number, so that its complete ranks are others.
    """
    note = folder / "tasks.txt"
    if not note.exists():
        note.write_text(f"{tasks}\n", "utf-8")
    elif (before := note.read_text("utf-8").strip()) != str(tasks):
        raise StageError(
            f"{folder} was begun with {before} shards and cannot go on with {tasks}: remove the folder"
        )
