"""Runs the ranks of a pipeline as tasks of a Ray cluster.

DataTrove's executor for Ray describes the work; the tasks are started here instead of in its `run`, which
waits for ever for a task whose process was killed, keeps what a step raised to itself, and starts further
ranks after one has failed. Each task runs its ranks in a child process, exactly as they run locally; the
child dies with the task's process, and that dies with the driver.
"""

import os
import secrets
import socket
import time
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import Any

from datatrove.executor.base import PipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.utils.logging import logger

from pipeline_config.environment import home
from pipeline_config.errors import EngineError, SettingsError
from pipeline_config.executors import RaySettings
from tasks.steps.engines.ranks import EXECUTOR_FILE, RankFailed, TaskLost, run_in_child

POLL_SECONDS = 1.0
CANCEL_SECONDS = 10.0
OBJECT_STORE_BYTES = 80_000_000  # close to the least that Ray accepts: nothing large goes through it
CONNECT_SECONDS = 10.0
# Read when Ray is imported. Despite its name it says on every system that nodes use the loopback address.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
NOT_INSTALLED = (
    "execution.executor.kind=ray needs the package ray: install Tokenmill with its extra `ray`, as in "
    "`pip install -c infra/constraints.txt -e '.[ray]'`"
)

logger.disable("datatrove.executor.ray")  # it warns of local folders: that they are shared is in the settings


class RayExecutor(RayPipelineExecutor):
    """DataTrove's executor for Ray; `drive` runs all incomplete ranks."""

    def __init__(self, pipeline: list[Any], settings: RaySettings, *, tasks: int, workers: int, folder: Path):
        gigabytes_per_cpu = settings.memory_per_task_bytes / settings.cpus_per_task / 2**30
        super().__init__(
            pipeline,
            tasks=tasks,
            workers=workers,
            cpus_per_task=settings.cpus_per_task,
            mem_per_cpu_gb=gigabytes_per_cpu,
            tasks_per_job=settings.shards_per_task,
            logging_dir=str(folder),
        )
        self.settings = settings
        self.file = str(folder / EXECUTOR_FILE)

    # DataTrove's own writes its log to one folder in /tmp for all runs and users of a node first.
    _run_for_rank = PipelineExecutor._run_for_rank

    def drive(self) -> None:
        """Runs all incomplete ranks; however it is left, no task of it goes on.

        Raises:
            RankFailed: a step raised something.
            EngineError: there is no cluster, or no room on it, or a task was lost too often.
        """
        ray = connect(self.settings.address)
        try:
            self._run_tasks(ray)
        finally:
            ray.shutdown()

    def _run_tasks(self, ray: ModuleType) -> None:
        ranks = self.get_incomplete_ranks()
        size = self.tasks_per_job
        waiting = deque(ranks[start : start + size] for start in range(0, len(ranks), size))
        task = self._task(ray)
        room = Room(ray, self.settings)
        running: dict[Any, list[int]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    some = waiting.popleft()
                    running[task.remote(self.file, some, os.getcwd())] = some
                for done in ray.wait(list(running), timeout=POLL_SECONDS)[0]:
                    collect(ray, done, running.pop(done), self.settings.max_retries)
                room.check()
        finally:
            cancel(ray, list(running))

    def _task(self, ray: ModuleType) -> Any:
        return ray.remote(run_in_child).options(
            num_cpus=self.settings.cpus_per_task,
            memory=self.settings.memory_per_task_bytes or None,
            max_retries=self.settings.max_retries,
            retry_exceptions=[TaskLost],
            name="tokenmill",
        )


def connect(address: str) -> ModuleType:
    """Ray, connected to a cluster.

    Raises:
        SettingsError: Ray is not installed.
        EngineError: no cluster answers, or it has another version of Ray or Python.
    """
    options: dict[str, Any] = {"address": address}
    if address == "local":
        os.environ.update(LOOPBACK_ONLY, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    os.environ["RAY_COLOR_PREFIX"] = "0"
    try:
        import ray
    except ImportError:
        raise SettingsError(NOT_INSTALLED) from None
    node_environment = {"env_vars": {"TOKENMILL_HOME": str(home())}}
    try:
        _knock(address)
        ray.init(**options, logging_level="warning", runtime_env=node_environment)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise EngineError(
            f"the Ray cluster at execution.executor.ray.address={address} cannot be used: {error}. "
            "Check the address, and that the head node runs (`ray status`)"
        ) from None
    return ray


def _knock(address: str) -> None:
    """Sees whether anybody listens there; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def collect(ray: ModuleType, done: Any, ranks: list[int], retries: int) -> None:
    """Takes the result of a task.

    Raises:
        RankFailed: a step raised something.
        EngineError: the task was lost more often than it is tried again, or could not run.
    """
    try:
        cause = ray.get(done)
    except (ray.exceptions.RayError, TaskLost) as error:
        raise EngineError(
            f"shards {_span(ranks)} could not be processed on the Ray cluster; a task that was lost is tried "
            f"{retries} times more. A process that is killed often wants memory: see execution.executor.ray. "
            f"The last problem: {getattr(error, 'cause', error)}"
        ) from None
    if cause is not None:
        raise RankFailed(cause)


def _span(ranks: list[int]) -> str:
    return f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"


def cancel(ray: ModuleType, running: list[Any]) -> None:
    """Ends tasks, and waits until they have ended."""
    for task in running:
        ray.cancel(task, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS)


class Room:
    """Whether the cluster has a node that is large enough for a task."""

    def __init__(self, ray: ModuleType, settings: RaySettings):
        self.ray = ray
        self.settings = settings
        self.deadline = time.monotonic() + settings.wait_for_node_seconds
        self.found = False

    def check(self) -> None:
        """Returns at once where there was such a node once, or while one may still come.

        Raises:
            EngineError: none came in time.
        """
        if self.found:
            return
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        wanted = {"CPU": self.settings.cpus_per_task, "memory": self.settings.memory_per_task_bytes}
        self.found = any(all(node.get(name, 0) >= wanted[name] for name in wanted) for node in nodes)
        if not self.found and time.monotonic() > self.deadline:
            sizes = ", ".join(f"{node.get('CPU', 0):g} / {node.get('memory', 0):.0f}" for node in nodes)
            raise EngineError(
                f"no node of the Ray cluster has {wanted['CPU']} cores and {wanted['memory']} bytes of "
                f"memory for a task (the nodes have {sizes}): lower execution.executor.ray.cpus_per_task or "
                "memory_per_task_bytes, or start larger nodes"
            )
