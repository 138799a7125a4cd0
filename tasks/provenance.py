"""What went in, what came out, what was thrown away and why: all calls to MLflow.

One run for each pipeline run, a child run for each stage, a logged and registered model for each checkpoint.
`tasks/records.py` says what is recorded and writes it to the spool; the `Tracker` here sends it. Every
operation may be sent twice and is recorded once: runs, models and versions are looked up by their `record`
tag, an identity of our own, before they are made; points, tags and datasets are keyed by MLflow itself.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModel,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    Run,
    RunTag,
    ViewType,
)
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.tracking._tracking_service import utils as tracking_service
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS, MLFLOW_PARENT_RUN_ID

from pipeline_config.environment import artifact_root, tracking_uri
from tasks.databases import create_once
from tasks.spool import Operation, Refused, Spool, spools
from tasks.store import Store

EXPERIMENT = "tokenmill"
RECORD = "record"  # the tag that holds our own identity of a run, a model or a version
MOST_METRICS, MOST_PARAMS, MOST_TAGS = 1000, 100, 100  # MLflow's limits for one batch
MODEL_TYPE = "tokenmill checkpoint"
CURRENT = "current"  # the alias of the newest model that nothing speaks against; MLflow reserves `latest`
MISSING, EXISTS = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"
NEVER = {"INVALID_PARAMETER_VALUE", MISSING, "INVALID_STATE"}
CONFLICT = "BAD_REQUEST"  # what MLflow says when a constraint of its database was broken
CONFLICT_ATTEMPTS, CONFLICT_PAUSE_SECONDS = 5, 0.2
NEVER_BY_HTTP = {400, 405, 411, 413, 414, 415, 422}  # an upload of this form or size, whoever says so


class Tracker:
    """Sends operations to MLflow.

    Raises:
        MlflowException: MLflow is away, or fails; trying again later may help.
    """

    def __init__(self, store: Store):
        if database := _database():
            create_once(database, create_tables)
        self.client = MlflowClient(tracking_uri())
        with store.lock("mlflow"):
            self.experiment = _experiment(self.client)

    def send(self, spool: Spool, operation: Operation, files: Path | None) -> None:
        """Sends one operation of a spool.

        Raises:
            Refused: MLflow will never accept it.
        """
        method = getattr(self, f"_{operation['name']}", None)
        if method is None:
            raise Refused(f"this version of Tokenmill knows no operation {operation['name']}")
        for attempt in range(1, CONFLICT_ATTEMPTS + 1):
            try:
                method(spool, files=files, **operation["arguments"])
                return
            except requests.HTTPError as error:
                if error.response is not None and error.response.status_code in NEVER_BY_HTTP:
                    raise Refused(str(error)) from None
                raise
            except MlflowException as error:
                if _is_transport(error) or error.error_code not in {CONFLICT, *NEVER}:
                    raise
                if error.error_code in NEVER or attempt == CONFLICT_ATTEMPTS:
                    raise Refused(str(error)) from None
            time.sleep(CONFLICT_PAUSE_SECONDS)  # two at once tripped each other, such as over a new dataset

    def find_run(self, record: str) -> str | None:
        """The id of the run with a record."""
        runs = self._runs(record)
        return runs[0].info.run_id if runs else None

    def _runs(self, record: str) -> list[Run]:
        filter_string = f"tags.{RECORD} = '{record}'"
        return list(
            self.client.search_runs([self.experiment], filter_string, ViewType.ACTIVE_ONLY, max_results=10)
        )

    def _start_run(
        self,
        spool: Spool,
        files: Path | None,
        record: str,
        parent: str | None,
        tags: dict[str, str],
        started: int,
    ) -> None:
        if self.find_run(record) is None:
            tags = tags | {RECORD: record}
            if parent:
                tags[MLFLOW_PARENT_RUN_ID] = self._run_id(spool, parent)
            self.client.create_run(self.experiment, start_time=started, tags=tags)
        self._keep_one_run(spool, record)

    def _keep_one_run(self, spool: Spool, record: str) -> None:
        """Deletes the runs of attempts whose answers were lost, and which counted after all."""
        found = sorted(run.info.run_id for run in self._runs(record))
        noted = spool.answers().get(record)
        kept = noted if noted in found else next(iter(found), None)
        for extra in found:
            if extra != kept:
                self.client.delete_run(extra)
        if kept not in (None, noted):
            spool.note(record, kept)

    def _run_id(self, spool: Spool, record: str) -> str:
        run_id = spool.answers().get(record) or self.find_run(record)
        if run_id is None:
            raise Refused(f"there is no run with the record {record}")
        return str(run_id)

    def _log(
        self,
        spool: Spool,
        files: Path | None,
        record: str,
        metrics: list[list[Any]] = [],  # noqa: B006
        params: dict[str, str] = {},  # noqa: B006
        tags: dict[str, str] = {},  # noqa: B006
    ) -> None:
        """`metrics` are rows of (name, value, time in ms, step)."""
        run_id = self._run_id(spool, record)
        points = [Metric(*point) for point in metrics]
        settings = [Param(name, value) for name, value in params.items()]
        labels = [RunTag(name, value) for name, value in tags.items()]
        while points or settings or labels:
            self.client.log_batch(
                run_id,
                metrics=_take(points, MOST_METRICS),
                params=_take(settings, MOST_PARAMS),
                tags=_take(labels, MOST_TAGS),
            )

    def _log_computed_by(self, spool: Spool, files: Path | None, record: str, computed_by: str) -> None:
        """Names the run that computed a cached output, as a run's id where it is known."""
        run_id = self.find_run(computed_by)
        if run_id:
            spool.note(computed_by, run_id)
        self.client.set_tag(self._run_id(spool, record), "computed_by", run_id or computed_by)

    def _describe(
        self,
        spool: Spool,
        files: Path | None,
        record: str,
        markdown: str,
        links: dict[str, list[str]],
        outside: dict[str, str],
    ) -> None:
        """Sets a run's description, with links.

        Args:
            links: title -> (the record of a run, a part of its page), or ("", a search for runs).
            outside: title -> address.
        """
        answers, addresses = spool.answers(), dict(outside)
        for title, (other, part) in links.items():
            if not other:
                search = f"searchFilter={quote(part)}&workflowType=machine_learning"
                addresses[title] = f"#/experiments/{self.experiment}/runs?{search}"
            elif run_id := answers.get(other) or self.find_run(other):
                spool.note(other, run_id)
                page = f"#/experiments/{self.experiment}/runs/{run_id}{part}"
                addresses[title] = f"{page}?workflowType=machine_learning"
        line = " · ".join(f"[{title}]({address})" for title, address in addresses.items())
        self.client.set_tag(self._run_id(spool, record), "mlflow.note.content", f"{line}\n\n{markdown}")

    def _log_artifacts(self, spool: Spool, files: Path | None, record: str) -> None:
        if files is not None:
            self.client.log_artifacts(self._run_id(spool, record), str(files))

    def _log_datasets(
        self, spool: Spool, files: Path | None, record: str, datasets: list[dict[str, str]]
    ) -> None:
        inputs = [_dataset_input(**dataset) for dataset in datasets]
        self.client.log_inputs(self._run_id(spool, record), inputs)

    def _end_run(self, spool: Spool, files: Path | None, record: str, status: str, ended: int) -> None:
        self.client.set_terminated(self._run_id(spool, record), status, ended)
        self._keep_one_run(spool, record)  # a request may arrive long after nobody waits for its answer

    def _log_model(
        self,
        spool: Spool,
        files: Path | None,
        record: str,
        run: str,
        name: str,
        step: int,
        params: dict[str, str],
        tags: dict[str, str],
        metrics: dict[str, float],
        dataset: list[str],
        finished: int,
    ) -> None:
        """Logs a checkpoint as a model of the run that trained it, and registers it.

        The alias `current` names the newest version that nothing speaks against.
        """
        run_id = self._run_id(spool, run)
        if not self._models(record):
            self.client.create_logged_model(
                self.experiment, name, run_id, tags | {RECORD: record}, params, MODEL_TYPE
            )
        model, *extras = self._models(record)
        for extra in extras:
            _delete(self.client.delete_logged_model, extra.model_id)
        model_id = model.model_id
        if model.status != LoggedModelStatus.READY:
            if files is not None:
                self.client.log_model_artifacts(model_id, str(files))
            links = {"model_id": model_id, "dataset_name": dataset[0], "dataset_digest": dataset[1]}
            self.client.log_batch(run_id, [Metric(n, v, finished, step, **links) for n, v in metrics.items()])
            self.client.finalize_logged_model(model_id, LoggedModelStatus.READY)
        outputs = self.client.get_run(run_id).outputs
        if model_id not in {model.model_id for model in (outputs.model_outputs if outputs else [])}:
            self.client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])
        self._register(record, name, model_id, run_id, tags, finished)

    def _models(self, record: str) -> list[LoggedModel]:
        """The logged models with a record; more than one where an answer was lost. The finished one leads."""
        found = self.client.search_logged_models([self.experiment], f"tags.{RECORD} = '{record}'")
        return sorted(
            found, key=lambda m: (m.status != LoggedModelStatus.READY, m.creation_timestamp, m.model_id)
        )

    def _register(
        self, record: str, name: str, model_id: str, run_id: str, tags: dict[str, str], finished: int
    ) -> None:
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != EXISTS:
                raise
        if not self._versions(name, record):
            with _global_tracking_uri(self.client.tracking_uri):
                self.client.create_model_version(
                    name,
                    f"models:/{model_id}",
                    run_id,
                    tags=tags | {RECORD: record, "finished": str(finished)},
                    await_creation_for=None,
                    model_id=model_id,
                )
        mine, *extras = self._versions(name, record)
        for extra in extras:
            _delete(self.client.delete_model_version, name, extra.version)
        versions = json.dumps([{"name": name, "version": int(mine.version)}])
        self.client.set_logged_model_tags(model_id, {MLFLOW_MODEL_VERSIONS: versions})
        self._name_current(name)

    def _name_current(self, name: str) -> None:
        """Gives the alias to the newest version that is not superseded, or takes it away."""
        versions = [v for v in self._versions(name) if "superseded_by" not in v.tags]
        if versions:
            newest = max(versions, key=lambda v: (int(v.tags.get("finished", 0)), int(v.version)))
            self.client.set_registered_model_alias(name, CURRENT, newest.version)
        else:
            self.client.delete_registered_model_alias(name, CURRENT)

    def _versions(self, name: str, record: str = "") -> list[ModelVersion]:
        """The versions of a registered model, the oldest first."""
        found = self.client.search_model_versions(f"name = '{name}'")
        chosen = [version for version in found if record in ("", version.tags.get(RECORD))]
        return sorted(chosen, key=lambda version: int(version.version))

    def _mark(self, spool: Spool, files: Path | None, digest: str, tags: dict[str, str]) -> None:
        """Adds tags to all runs, models and model versions whose output has a digest."""
        for run in self.client.search_runs([self.experiment], f"tags.digest = '{digest}'"):
            self.client.log_batch(run.info.run_id, tags=[RunTag(n, v) for n, v in tags.items()])
        for model in self.client.search_logged_models([self.experiment], f"tags.checkpoint = '{digest}'"):
            self.client.set_logged_model_tags(model.model_id, tags)
        for version in self.client.search_model_versions(f"tags.checkpoint = '{digest}'"):
            for name, value in tags.items():
                self.client.set_model_version_tag(version.name, version.version, name, value)
            self._name_current(version.name)


def _delete(delete: Callable[..., None], *name: str) -> None:
    """Deletes what may be gone: the answer to an earlier attempt may have been lost."""
    try:
        delete(*name)
    except MlflowException as error:
        if error.error_code != MISSING or _is_transport(error):
            raise


@contextlib.contextmanager
def _global_tracking_uri(uri: str) -> Iterator[None]:
    """MLflow's registry on a database asks the global address.

    MLflow's own setter would change the environment, too, which other threads and child processes read.
    """
    before = tracking_service._tracking_uri
    tracking_service._tracking_uri = uri
    try:
        yield
    finally:
        tracking_service._tracking_uri = before


def _take(values: list[Any], count: int) -> list[Any]:
    taken, values[:] = values[:count], values[count:]
    return taken


def _is_transport(error: MlflowException) -> bool:
    """Whether a server in between said so: it does not speak for MLflow."""
    return "API request to" in str(error) or "did not return" in str(error)


def _dataset_input(
    name: str, digest: str, uri: str, profile: str, context: str, schema: str | None = None
) -> DatasetInput:
    dataset = Dataset(
        name=name,
        digest=digest,
        source_type="local",
        source=json.dumps({"uri": uri}),
        profile=profile,
        schema=schema,
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


def send_all(root: Path, store: Store) -> Iterator[tuple[Spool, int]]:
    """Sends what waits in all spools that no other process is sending; yields each with the number sent.

    A spool that cannot be sent does not keep the others waiting.

    Raises:
        MlflowException: MLflow is away or fails; the first error of all spools, at the end.
    """
    tracker, problem = None, None
    for spool in spools(root):
        with spool.lock() as mine:
            if mine and (waiting := spool.waiting()):
                tracker = tracker or Tracker(store)
                try:
                    spool.send(tracker.send)
                except Exception as error:
                    problem = problem or error
                yield spool, waiting - spool.waiting()
            if mine:
                spool.remove_if_done()
    if problem is not None:
        raise problem


def _experiment(client: MlflowClient) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found:
        return found.experiment_id
    location = (artifact_root() / EXPERIMENT).as_uri() if _database() else None
    try:
        return client.create_experiment(EXPERIMENT, artifact_location=location)
    except MlflowException as error:
        found = client.get_experiment_by_name(EXPERIMENT) if error.error_code == EXISTS else None
        if found is None:
            raise
        return found.experiment_id  # another machine made it, or an attempt whose answer was lost


def _database() -> Path | None:
    """The SQLite file that MLflow records to, if it does."""
    path = tracking_uri().removeprefix("sqlite:///")
    return Path(path) if path != tracking_uri() else None


def create_tables(path: Path) -> None:
    """Makes MLflow's tables in a new SQLite file."""
    MlflowClient(f"sqlite:///{path}").search_experiments()
