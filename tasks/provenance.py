"""What went in, what came out, what was thrown away and why: all calls to MLflow.

One run for each pipeline run, a child run for each stage. A stage that came from the cache has a child run
too, which names the run that computed it.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunStatus, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME
from prefect.runtime import flow_run

from pipeline_config.environment import artifact_root, tracking_uri
from pipeline_config.settings import Settings
from tasks.databases import create_once
from tasks.sources import Origin
from tasks.stage import Report, Stage, StageResult
from tasks.store import MANIFEST, REPORT, StageOutput, Store, write_json

EXPERIMENT = "tokenmill"
COMPUTED_BY = "_mlflow.json"  # lies in a stage's folder, beside Prefect's record
LOG_ATTEMPTS = 5
DIGEST_CHARACTERS = 36  # MLflow's limit
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\- ]")
NAME_CHARACTERS = 200  # MLflow's limit for a whole name is 250


class Provenance:
    """Records one pipeline run and its stages."""

    def __init__(self, store: Store):
        self.store = store
        if database := _database():
            create_once(database, _create_tables)
        self.client = MlflowClient(tracking_uri())
        with store.lock("mlflow"):
            self.experiment = _experiment(self.client)
        self.parent = ""

    def start_pipeline(self, settings: Settings) -> None:
        """Opens the run of the pipeline."""
        tags = {
            MLFLOW_RUN_NAME: settings.name,
            "preset": settings.name,
            "prefect.flow": str(flow_run.flow_name or ""),
            "prefect.flow_run_id": str(flow_run.id or ""),
            "prefect.flow_run_name": str(flow_run.name or ""),
        }
        self.parent = self.client.create_run(self.experiment, tags=tags).info.run_id
        self.client.log_dict(self.parent, settings.model_dump(mode="json"), "settings.json")
        sources = {
            f"sources.{source.name}.{field}": getattr(source, field)
            for source in settings.sources
            for field in ("kind", "dump", "revision", "licence", "weight")
        }
        self._log(self.parent, params=sources)

    def start_stage(self, stage: Stage, label: str, settings: Any) -> str:
        """Opens the child run of a stage and returns its id."""
        tags = {
            MLFLOW_PARENT_RUN_ID: self.parent,
            MLFLOW_RUN_NAME: f"{stage.name} {label}".strip(),
            "stage": stage.name,
            "label": label,
        }
        run_id = self.client.create_run(self.experiment, tags=tags).info.run_id
        self._log(run_id, params=_flatten(settings.model_dump(mode="json")))
        return run_id

    def finish_stage(
        self,
        run_id: str,
        stage: Stage,
        result: StageResult,
        inputs: list[StageOutput],
        origin: Origin | None = None,
    ) -> None:
        """Records what the stage made of what, and closes its run."""
        output, folder = result.output, self.store.path(result.output)
        if not result.cached:
            write_json(folder / COMPUTED_BY, {"run_id": run_id, "tracking_uri": tracking_uri()})
        self._log(
            run_id,
            tags={
                "key": output.key,
                "digest": output.digest,
                "cached": str(result.cached).lower(),
                "computed_by": _computed_by(folder),
            },
            metrics=stage_metrics(result.report) | {"task_seconds": result.seconds},
        )
        self._log_datasets(run_id, inputs, output, result.report, origin)
        for name in (MANIFEST, REPORT, *(() if result.cached else stage.artifacts)):
            self._log_artifact(run_id, folder / name)
        self.client.set_terminated(run_id)

    def fail_stage(self, run_id: str, error: BaseException) -> None:
        """Closes the run of a stage that could not finish."""
        message = f"{type(error).__name__}: {error}"[:4000].encode("utf-8", "replace").decode()
        self._log(run_id, tags={"error": message})
        self.client.set_terminated(run_id, RunStatus.to_string(RunStatus.FAILED))

    def log_metrics(self, run_id: str, values: dict[str, float], step: int) -> None:
        """Adds a point to each curve of a run."""
        self._log(run_id, metrics=values, step=step)

    def log_text(self, text: str, name: str) -> None:
        """Adds a text to the pipeline run's artifacts."""
        self.client.log_text(self.parent, text, name)

    def finish_pipeline(self, results: list[StageResult], succeeded: bool) -> None:
        """Closes the run of the pipeline with the figures of all its stages."""
        metrics = {
            f"{result.output.stage}/{safe_name(result.output.label or 'all')}/{name}": float(
                result.report[name]
            )
            for result in results
            for name in ("read", "kept")
            if name in result.report
        }
        self._log(self.parent, metrics=metrics)
        status = RunStatus.FINISHED if succeeded else RunStatus.FAILED
        self.client.set_terminated(self.parent, RunStatus.to_string(status))

    def _log_artifact(self, run_id: str, path: Path) -> None:
        if path.is_dir():
            self.client.log_artifacts(run_id, str(path), path.name)
        else:
            self.client.log_artifact(run_id, str(path))

    def _log_datasets(
        self,
        run_id: str,
        inputs: list[StageOutput],
        output: StageOutput,
        report: Report,
        origin: Origin | None,
    ) -> None:
        consumed = [self._dataset(dataset, {}, "input") for dataset in inputs]
        if origin is not None:
            profile = json.dumps({"source": origin.name})
            consumed.append(_dataset_input(origin.name, origin.digest, origin.uri, profile, "input"))
        self._log_inputs(run_id, [*consumed, self._dataset(output, report, "output")])
        self._log_inputs(self.parent, [self._dataset(output, report, "output")])

    def _log_inputs(self, run_id: str, inputs: list[DatasetInput]) -> None:
        """Adds datasets to a run. Two runs that bring MLflow the same new one at once trip each other."""
        for attempt in range(LOG_ATTEMPTS):
            try:
                self.client.log_inputs(run_id, inputs)
            except MlflowException:
                if attempt == LOG_ATTEMPTS - 1:
                    raise
                time.sleep(0.2)
            else:
                return

    def _dataset(self, output: StageOutput, report: Report, context: str) -> DatasetInput:
        counts = {name: report[name] for name in ("read", "kept") if name in report}
        profile = json.dumps({"stage": output.stage, "key": output.key, **counts})
        name = f"{output.stage} {output.label}".strip()
        return _dataset_input(name, output.digest, str(self.store.path(output)), profile, context)

    def _log(
        self,
        run_id: str,
        *,
        metrics: dict[str, float] | None = None,
        params: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        step: int = 0,
    ) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(
            run_id,
            metrics=[Metric(name, float(value), now, step) for name, value in (metrics or {}).items()],
            params=[Param(name, str(value)[:6000]) for name, value in (params or {}).items()],
            tags=[RunTag(k, v) for k, v in (tags or {}).items()],
        )


def _dataset_input(name: str, digest: str, uri: str, profile: str, context: str) -> DatasetInput:
    dataset = Dataset(
        name=name,
        digest=digest[:DIGEST_CHARACTERS],
        source_type="local",
        source=json.dumps({"uri": uri}),
        profile=profile,
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def stage_metrics(report: Report) -> dict[str, float]:
    """The figures of a report under names that are the same in every run."""
    metrics = {name: float(value) for name, value in report.items() if isinstance(value, int | float)}
    for group in ("removed", "failed", "measures"):
        prefix = "" if group == "measures" else f"{group}/"
        metrics |= {f"{prefix}{safe_name(name)}": float(v) for name, v in report.get(group, {}).items()}
    if report.get("read"):
        metrics["removal_rate"] = 1 - report["kept"] / report["read"]
    return metrics


def safe_name(name: str) -> str:
    """A part of a metric's name that MLflow accepts, whatever a reason or a label holds."""
    return NOT_IN_NAMES.sub("_", name)[:NAME_CHARACTERS] or "_"


def _experiment(client: MlflowClient) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found:
        return found.experiment_id
    location = (artifact_root() / EXPERIMENT).as_uri() if _database() else None
    return client.create_experiment(EXPERIMENT, artifact_location=location)


def _database() -> Path | None:
    """The SQLite file that MLflow records to, if it does."""
    path = tracking_uri().removeprefix("sqlite:///")
    return Path(path) if path != tracking_uri() else None


def _create_tables(path: Path) -> None:
    MlflowClient(f"sqlite:///{path}").search_experiments()


def _computed_by(folder: Path) -> str:
    try:
        return json.loads((folder / COMPUTED_BY).read_text("utf-8"))["run_id"]
    except (OSError, ValueError, KeyError):
        return ""


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
