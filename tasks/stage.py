"""What all stages share: key, folder, run, ledger, commit.

A stage module names itself with a `Stage`, computes its output in a function that gets `Work`, and runs it
with `run.stage(...)`. The key is the SHA-256 of everything that determines the output; Prefect's record of
the task lies inside the output's folder, so that what is cached and what is there cannot disagree.
"""

import importlib.metadata
import json
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep
from prefect import task
from prefect.logging import get_run_logger
from prefect.logging.loggers import LoggingAdapter
from prefect.tasks import exponential_backoff
from pydantic import BaseModel

from pipeline_config.errors import (
    CanaryError,
    EngineError,
    LedgerError,
    LimitError,
    StageError,
    may_pass,
)
from pipeline_config.settings import STAGES, Execution
from tasks.caching import stage_cache
from tasks.child import Rules
from tasks.executor import run_pipeline
from tasks.patience import BACKOFF_JITTER, BACKOFF_SECONDS, patiently
from tasks.progress import Progress
from tasks.steps.shards import CountDocuments
from tasks.store import COMPUTATION, REPORT, StageOutput, Store, digest_of, disk_errors, write_json
from tasks.turns import computing_turn

Report = dict[str, Any]
SCAFFOLDING = ("logs", "progress", "scratch", "shards")


@dataclass(frozen=True)
class Stage:
    """Identity of a stage. Raise `version` when its code changes what it makes.

    `libraries` are those whose version decides the output; `artifacts` are the files and folders of it
    that are small and telling enough to be copied to MLflow.
    """

    name: str
    title: str
    version: int
    libraries: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()

    def recipe(self, settings: BaseModel, content: Sequence[Any]) -> dict[str, Any]:
        """All that determines the output, as plain data; its digest is the key."""
        return {
            "stage": self.name,
            "version": self.version,
            "settings": settings.model_dump(mode="json"),
            "inputs": list(content),
            "libraries": library_versions(self.libraries),
        }


def library_versions(names: Sequence[str]) -> dict[str, str]:
    """Installed versions of the libraries, and of Python.

    Raises:
        StageError: one of them is not installed.
    """
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise StageError(
                f"package {name} is not installed: run `bash infra/run.sh`, it sets up"
            ) from None
    return versions


@dataclass
class Work:
    """What a stage's function gets: settings, inputs, and a folder to fill."""

    stage: Stage
    label: str
    settings: Any
    execution: Execution
    store: Store
    folder: Path
    inputs: list[StageOutput]
    progress: Progress
    log: LoggingAdapter
    tracking_run: str | None = None
    started: float = field(default_factory=time.monotonic)

    def shards(self, *outputs: StageOutput, pattern: str = "*.parquet") -> list[str]:
        """Document files of the outputs (by default all inputs), in order."""
        chosen = outputs or self.inputs
        return [
            str(path)
            for output in chosen
            for path in sorted((self.store.path(output) / "documents").glob(pattern))
        ]

    def documents(self) -> int | None:
        """How many documents the inputs have; None where that is not known before they are read."""
        files = [file for output in self.inputs for file in self.store.manifest(output)["files"]]
        rows = [file["rows"] for file in files if file["path"].startswith("documents/") and "rows" in file]
        return sum(rows) if rows else None

    @property
    def rules(self) -> Rules:
        """What the stage's child processes may use, and where their output goes."""
        seconds = self.execution.max_stage_seconds
        return Rules(
            deadline=self.started + seconds if seconds else float("inf"),
            max_seconds=seconds,
            max_memory_bytes=self.execution.max_stage_memory_bytes,
            log=self.log.log,
        )

    def run_steps(
        self, steps: Sequence[PipelineStep], *, tasks: int, name: str = "shards", counted: bool = True
    ) -> None:
        """Runs DataTrove steps on `tasks` ranks; ranks that an interrupted attempt finished are skipped.

        Args:
            counted: whether the documents pass through the steps, so that they can be counted.
        """
        counts = self.folder / "progress" / name
        self.progress.expect(counts, self.documents() if counted else None)
        run_pipeline(
            [*steps, CountDocuments(str(counts))] if counted else steps,
            tasks=tasks,
            workers=self.execution.workers,
            logging_dir=self.folder / "logs" / name,
            settings=self.execution.executor,
            on_poll=self.progress.update,
            rules=self.rules,
        )

    def run_shards(self, steps: Sequence[PipelineStep], *, tasks: int, counted: bool = True) -> Report:
        """Runs a document stage and returns its counts, summed over the shards."""
        self.run_steps(steps, tasks=tasks, counted=counted)
        return sum_shards(self.folder / "shards", tasks)


def sum_shards(folder: Path, tasks: int) -> Report:
    """The counts of all shards together.

    Raises:
        LedgerError: a shard has no books.
    """
    report: Report = {name: Counter() for name in ("removed", "failed", "measures")}
    for rank in range(tasks):
        path = folder / f"{rank:05d}.json"
        if not path.is_file():
            raise LedgerError(f"shard {rank} of {tasks} has no books in {folder}: its records have no fate")
        for name, value in json.loads(path.read_text("utf-8")).items():
            if isinstance(value, dict):
                report[name].update(value)
            else:
                report[name] = report.get(name, 0) + value
    return report | {name: dict(sorted(report[name].items())) for name in ("removed", "failed", "measures")}


def check_books(report: Report, where: str, max_failed_share: float) -> None:
    """Refuses a result whose books do not balance, or that cannot be right.

    Raises:
        LedgerError: read != kept + removed + failed.
        CanaryError: too large a share failed, or nothing was kept.
    """
    if "read" not in report:
        return  # a stage that handles no records
    read, kept = report["read"], report["kept"]
    removed, failed = sum(report["removed"].values()), sum(report["failed"].values())
    if read != kept + removed + failed:
        raise LedgerError(
            f"{where}: the books do not balance: read {read} != "
            f"kept {kept} + removed {removed} + failed {failed}"
        )
    if read and failed / read > max_failed_share:
        raise CanaryError(
            f"{where}: {failed} of {read} records failed ({failed / read:.0%}), more than "
            f"execution.max_failed_share={max_failed_share:.0%}: {_most_common(report['failed'])}"
        )
    if not kept:
        raise CanaryError(
            f"{where}: nothing was kept of {read} records: "
            f"{_most_common(report['removed'] | report['failed']) or 'there was no input'}"
        )


def _most_common(reasons: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in Counter(reasons).most_common(5))


@dataclass
class StageResult:
    """A stage's output with its counts, for the funnel."""

    output: StageOutput
    report: Report
    cached: bool
    seconds: float
    computation: dict[str, Any] = field(default_factory=dict)

    @property
    def computing_seconds(self) -> float:
        """Seconds that the computation took, whenever that was."""
        return float(self.computation.get("seconds", 0.0))


class StageRunner:
    """Runs stages on one store.

    Args:
        flow_run_id: the flow run whose page shows progress and log; by default the one that is running.
        log: the log of that flow run.
    """

    def __init__(
        self,
        store: Store,
        execution: Execution,
        flow_run_id: str = "",
        log: LoggingAdapter | None = None,
    ):
        self.store = store
        self.execution = execution
        self.flow_run_id = flow_run_id
        self.log = log

    def run(
        self,
        stage: Stage,
        build: Callable[[Work], Report],
        settings: BaseModel,
        *,
        label: str = "",
        inputs: Sequence[StageOutput] = (),
        content: Sequence[Any] = (),
        tracking_run: str | None = None,
    ) -> StageResult:
        """The output of a stage: found by its key, or built and committed.

        Args:
            inputs: outputs of other stages; their content digests are part of the key.
            content: whatever else determines the output, as plain data.
        """
        started = time.monotonic()
        recipe = stage.recipe(settings, [*content, *(output.digest for output in inputs)])
        computed: list[bool] = []

        def compute(work: Work) -> Report:
            computed.append(True)
            return build(work)

        def build_stage(key: str, inputs: list[StageOutput]) -> StageOutput:
            with (
                disk_errors(self.store.root),
                computing_turn(self.store, stage.name, key),
            ):  # here too: Prefect shows what the task raised
                return self._build(stage, compute, settings, recipe, key, label, inputs, tracking_run)

        named = f"{stage.title}: {label}" if label else stage.title
        run_stage = task(
            build_stage,
            name=stage.title,
            task_run_name=named.replace("{", "(").replace("}", ")"),
            cache_policy=stage_cache(self.store, stage.name),
            result_storage=self.store.root,
            result_serializer="json",
            persist_result=True,
            cache_result_in_memory=False,
            refresh_cache=self._is_fresh(stage),
            retries=self.execution.retries,
            retry_delay_seconds=exponential_backoff(BACKOFF_SECONDS),
            retry_jitter_factor=BACKOFF_JITTER,
            retry_condition_fn=_is_worth_another_try,
        )
        key = digest_of(recipe)
        self.store.root.mkdir(parents=True, exist_ok=True)
        self.store.sweep(stage.name, keep=key)
        try:
            output = run_stage(key, list(inputs))
        except Exception:
            self.store.remove_loose_files()
            raise
        patiently(self.store.share, output, retries=self.execution.retries, log=self.log or get_run_logger())
        output = output if output.label == label else output.model_copy(update={"label": label})
        report = self.store.report(output)
        check_books(report, f"stage {named}", self.execution.max_failed_share)
        seconds = time.monotonic() - started
        return StageResult(output, report, not computed, seconds, self.store.computation(output))

    def _build(
        self,
        stage: Stage,
        build: Callable[[Work], Report],
        settings: BaseModel,
        recipe: dict[str, Any],
        key: str,
        label: str,
        inputs: list[StageOutput],
        tracking_run: str | None,
    ) -> StageOutput:
        found = self.store.find(stage.name, key, label)
        if found and not self._is_fresh(stage):
            self.store.share(found)
            return found
        log = self.log or get_run_logger()
        log.info("computing %s %s, key %s", stage.name, label, key[:12])
        folder = self.store.building_folder(stage.name, key)
        progress = Progress(f"{stage.title} {label}".strip(), self.flow_run_id)
        work = Work(
            stage, label, settings, self.execution, self.store, folder, inputs, progress, log, tracking_run
        )
        started = time.monotonic()
        try:
            report = build(work)
            check_books(report, f"stage {stage.title} {label}".strip(), self.execution.max_failed_share)
        except Exception as error:
            kept = isinstance(error, (LimitError, EngineError)) or may_pass(error)
            if not kept:  # else the next attempt goes on from it
                self.store.discard_draft(stage.name, key)  # a failed stage leaves nothing behind
            raise
        finally:
            progress.finish()
        _tidy(folder)
        write_json(folder / REPORT, report)
        seconds = round(time.monotonic() - started, 3)
        write_json(folder / COMPUTATION, {"seconds": seconds, "record": tracking_run})
        if found:
            return self.store.confirm(found, label)
        output = self.store.commit(stage.name, key, recipe, label)
        self.store.share(output)  # within the task: it is tried again if the object store does not answer
        return output

    def _is_fresh(self, stage: Stage) -> bool:
        """Whether the stage is computed even where the store has its output."""
        first = self.execution.from_stage
        return bool(first) and stage.name in STAGES and STAGES.index(stage.name) >= STAGES.index(first)


def _is_worth_another_try(task: Any, run: Any, state: Any) -> bool:
    """Whether a task that failed is tried again: only if what it failed of may pass."""
    try:
        state.result()
    except Exception as error:
        return may_pass(error)
    return False


def _tidy(folder: Path) -> None:
    """Removes what only the making needed: logs, shard books, files of killed workers."""
    for name in SCAFFOLDING:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in list(folder.rglob(".*")):
        if path.is_file():
            path.unlink()
