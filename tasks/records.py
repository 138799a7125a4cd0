"""What is recorded of a pipeline run, in operations that `tasks/provenance.py` carries out.

Everything is written to the spool first (`tasks/spool.py`), so recording never waits for MLflow and never
fails with it. What is not sent when the run ends stays on disk for `python -m flows.audit flush`.
"""

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

from pipeline_config.environment import mlflow_page, prefect_ui, tracking_uri
from pipeline_config.settings import Settings
from tasks.lineage import Node, RunRecord
from tasks.sender import Sender, spool_root
from tasks.sources import Origin
from tasks.spool import Spool
from tasks.stage import Report, Stage, StageResult
from tasks.store import MANIFEST, REPORT, StageOutput, Store, json_text, write_json

DIGEST_CHARACTERS, VALUE_CHARACTERS, ERROR_CHARACTERS = 36, 6000, 4000  # MLflow's limits
NAME_CHARACTERS = 150  # of a part; with a stage and a source's name before it, MLflow's limit is 250
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\- ]")
REMOVALS = "removals.json"
ARTIFACTS = "_artifacts.json"  # beside an output: which run in which MLflow has its artifacts
LARGEST_ARTIFACT_BYTES = 100_000_000
MLFLOW_TYPES = {"string": "string", "int64": "long", "double": "double", "bool": "boolean"}


class Records:
    """Records one pipeline run and its stages."""

    def __init__(self, store: Store, run: RunRecord):
        self.store = store
        self.run = run
        self.spool = Spool(spool_root() / run.id)
        self.sender = Sender(self.spool, store)
        self.stages = 0
        self.makers: dict[str, str] = {}

    def start_pipeline(self, settings: Settings) -> None:
        """Opens the run of the pipeline."""
        self.sender.start()
        self._start(self.run.id, None, settings.name, {"kind": "pipeline"})
        self._keep(
            "log_artifacts",
            {"settings.json": json_text(settings.model_dump(mode="json"))},
            record=self.run.id,
        )
        self._log(
            self.run.id,
            params={
                f"sources.{source.name}.{field}": getattr(source, field)
                for source in settings.sources
                for field in ("kind", "dump", "revision", "licence", "weight")
            },
        )

    def start_stage(self, stage: Stage, label: str, settings: Any) -> str:
        """Opens the child run of a stage and returns its record."""
        record = str(uuid4())
        self.stages += 1
        name = f"{self.stages:02d} {stage.name} {label}".strip()
        self._start(record, self.run.id, name, {"kind": "stage", "stage": stage.name, "label": label})
        self._log(record, params=flatten(settings.model_dump(mode="json")))
        return record

    def finish_stage(
        self, record: str, stage: Stage, result: StageResult, node: Node, origin: Origin | None = None
    ) -> None:
        """Records what the stage made of what, and closes its run."""
        output = result.output
        consumed = [found.digest for found in self._inputs(node)] + ([origin.digest] if origin else [])
        tags = {
            "key": output.key,
            "digest": output.digest,
            "consumes": " ".join(digest[:DIGEST_CHARACTERS] for digest in consumed),
            "cached": str(result.cached).lower(),
            "mlflow.loggedArtifacts": json.dumps([{"path": REMOVALS, "type": "table"}]),
        }
        metrics = stage_metrics(result.report)
        metrics |= {"seconds": result.computing_seconds, "task_seconds": result.seconds}
        self._log(record, tags=tags, metrics=metrics)
        computed_by = result.computation.get("record")
        if computed_by:
            self._keep("log_computed_by", record=record, computed_by=computed_by)
        self._log_datasets(record, node, result.report, origin)
        self._describe_stage(record, node)
        self.makers[node.name] = record
        folder, names = self.store.path(output), (MANIFEST, REPORT)
        names += () if self.artifacts_of(output) else stage.artifacts
        files: dict[str, Path | str] = {
            name: folder / name for name in names if _bytes(folder / name) <= LARGEST_ARTIFACT_BYTES
        }
        self._keep("log_artifacts", files | {REMOVALS: removal_table([result])}, record=record)
        if not self.artifacts_of(output):
            write_json(folder / ARTIFACTS, {"record": record, "tracking_uri": tracking_uri()})
        self._end(record, "FINISHED")

    def artifacts_of(self, output: StageOutput) -> str | None:
        """The record that has the artifacts of an output, in the MLflow that is in use now."""
        try:
            found = json.loads((self.store.path(output) / ARTIFACTS).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found["record"] if found["tracking_uri"] == tracking_uri() else None

    def fail_stage(self, record: str, error: BaseException) -> None:
        """Closes the run of a stage that could not finish."""
        self._log(record, tags={"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]})
        self._end(record, "FAILED")

    def log_points(self, record: str, points: list[tuple[int, Mapping[str, float]]]) -> None:
        """Adds points, each (step, values), to the curves of a run."""
        now = _now()
        rows = [[n, float(v), now, step] for step, values in points for n, v in values.items()]
        self._keep("log", record=record, metrics=rows)

    def log_text(self, text: str, name: str) -> None:
        """Adds a text to the pipeline run's artifacts."""
        self._keep("log_artifacts", {name: text}, record=self.run.id)

    def log_files(self, files: Mapping[str, Path | str]) -> None:
        """Adds files to the pipeline run's artifacts."""
        self._keep("log_artifacts", files, record=self.run.id)

    def log_model(
        self,
        trained_by: str,
        name: str,
        checkpoint: str,
        *,
        step: int,
        files: Mapping[str, Path | str],
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        data: Node,
    ) -> None:
        """Records a checkpoint (a digest) as a model trained on `data`, and registers it, once."""
        self._keep(
            "log_model",
            files,
            record=f"{name} {checkpoint}",
            run=trained_by,
            name=name,
            step=step,
            params=_texts(params),
            tags=_texts(tags),
            metrics=dict(metrics),
            dataset=[f"{data.stage} {data.label}".strip(), data.digest[:DIGEST_CHARACTERS]],
            finished=_now(),
        )

    def tag(self, tags: Mapping[str, str]) -> None:
        """Adds tags to the pipeline run."""
        self._log(self.run.id, tags=tags)

    def warn(self, record: str, mark: Mapping[str, str]) -> None:
        """Says on a run's page that its output is marked."""
        self._log(record, tags={"warning": mark["what"], **mark_tags(mark)})

    def mark(self, digest: str, tags: Mapping[str, str]) -> None:
        """Adds tags to all that is recorded of an output."""
        self._keep("mark", digest=digest, tags=_texts(tags))

    def describe_pipeline(self, markdown: str, links: Mapping[str, tuple[str, str]]) -> None:
        """Sets the description that the run's page shows.

        Args:
            links: for each title, the record of a run and a part of its page, such as `/artifacts/x.html`.
        """
        text = _plain(markdown)[: VALUE_CHARACTERS // 2]
        outside = {"flow run in Prefect": self._prefect_url()} if self.run.flow_run_id else {}
        pages = {title: [*place] for title, place in links.items()}
        self._keep("describe", record=self.run.id, markdown=text, links=pages, outside=outside)

    def _describe_stage(self, record: str, node: Node) -> None:
        """Links a stage's run to those that made its inputs, and to those that used its output."""
        links = {
            f"{found.stage} {found.label}": [self.makers[found.name], ""]
            for found in self._inputs(node)
            if found.name in self.makers
        }
        links["users of the output"] = ["", f"tags.consumes LIKE '%{node.digest[:DIGEST_CHARACTERS]}%'"]
        links["all runs with the output"] = ["", f"dataset.digest = '{node.digest[:DIGEST_CHARACTERS]}'"]
        self._keep("describe", record=record, markdown="", links=links, outside={})

    def _prefect_url(self) -> str:
        return f"{prefect_ui()}/runs/flow-run/{self.run.flow_run_id}"

    def finish_pipeline(self, results: list[StageResult], succeeded: bool) -> None:
        """Closes the run of the pipeline with the figures of all its stages."""
        metrics = {
            f"{result.output.stage}/{safe_name(result.output.label or 'all')}/{name}": value
            for result in results
            for name, value in stage_metrics(result.report).items()
            if name in ("read", "kept", "removal_rate") or name.startswith(("removed/", "failed/"))
        }
        if results:
            self.log_files({REMOVALS: removal_table(results)})
            shown = json.dumps([{"path": REMOVALS, "type": "table"}])
            self._log(self.run.id, metrics=metrics, tags={"mlflow.loggedArtifacts": shown})
        self._end(self.run.id, "FINISHED" if succeeded else "FAILED")

    def close(self, seconds: float | None = None) -> None:
        """Waits a while until everything is sent; what is not stays on disk, and the log says so."""
        self.sender.close(seconds)

    def page(self, record: str = "", part: str = "") -> str | None:
        """Address of a run's page in MLflow (by default the pipeline run's), once MLflow has it."""
        answers = self.spool.answers() or self.sender.answers
        run_id = answers.get(record or self.run.id)
        return mlflow_page(answers["experiment"], run_id, part) if run_id else None

    def _start(self, record: str, parent: str | None, name: str, tags: dict[str, str]) -> None:
        flow = {
            "prefect.flow": self.run.flow,
            "prefect.flow_run_id": self.run.flow_run_id,
            "prefect.url": self._prefect_url(),
        }
        common = {"mlflow.runName": name, "preset": self.run.name, "run": self.run.id, "code": self.run.code}
        tags = _texts(common | tags | (flow if self.run.flow_run_id else {}))
        self._keep("start_run", record=record, parent=parent, tags=tags, started=_now())

    def _end(self, record: str, status: str) -> None:
        self._keep("end_run", record=record, status=status, ended=_now())

    def _keep(self, name: str, files: Mapping[str, Path | str] | None = None, /, **arguments: Any) -> None:
        self.spool.add(name, files, **arguments)
        self.sender.wake()

    def _log(
        self,
        record: str,
        *,
        metrics: Mapping[str, float] | None = None,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        now = _now()
        self._keep(
            "log",
            record=record,
            metrics=[[name, float(value), now, 0] for name, value in (metrics or {}).items()],
            params=_texts(params or {}),
            tags=_texts(tags or {}),
        )

    def _inputs(self, node: Node) -> list[Node]:
        return [found for found in self.run.nodes if found.name in node.inputs]

    def _log_datasets(self, record: str, node: Node, report: Report, origin: Origin | None) -> None:
        consumed = [self._dataset(found, {}, "input") for found in self._inputs(node)]
        if origin is not None:
            profile = json.dumps({"source": origin.name})
            digest = origin.digest[:DIGEST_CHARACTERS]
            consumed.append(_entry(origin.name, digest, origin.uri, profile, "input"))
        made = self._dataset(node, report, "output")
        self._keep("log_datasets", record=record, datasets=[*consumed, made])
        self._keep("log_datasets", record=self.run.id, datasets=[made])

    def _dataset(self, node: Node, report: Report, context: str) -> dict[str, Any]:
        counts = {name: report[name] for name in ("read", "kept") if name in report}
        profile = json.dumps({"stage": node.stage, "key": node.key, **counts})
        name, uri = f"{node.stage} {node.label}".strip(), str(self.store.path(node.output))
        digest = node.digest[:DIGEST_CHARACTERS]
        return _entry(name, digest, uri, profile, context) | {"schema": _schema(self.store, node.output)}


def mark_tags(mark: Mapping[str, str]) -> dict[str, str]:
    """The tags of runs and models whose output is marked."""
    return {"superseded_by": mark["superseded_by"], "takedown": mark["takedown"]}


def stage_metrics(report: Report) -> dict[str, float]:
    """The figures of a report under names that are the same in every run."""
    metrics = {name: float(value) for name, value in report.items() if isinstance(value, int | float)}
    for group in ("removed", "failed", "measures"):
        figures: dict[str, float] = {}
        for name, value in report.get(group, {}).items():
            name = safe_name(name) if group == "measures" else f"{group}/{safe_name(name)}"
            figures[name] = figures.get(name, 0.0) + float(value)
        metrics |= figures
    if report.get("read"):
        metrics["removal_rate"] = 1 - report["kept"] / report["read"]
    return metrics


def removal_table(results: list[StageResult]) -> str:
    """What was removed or failed, a row for each reason, as a table that MLflow shows."""
    columns = ["stage", "source", "fate", "reason", "records", "share_of_read"]
    rows = [
        [result.output.stage, result.output.label, fate, _plain(reason), count, count / result.report["read"]]
        for result in results
        for fate in ("removed", "failed")
        for reason, count in result.report.get(fate, {}).items()
    ]
    return json_text({"columns": columns, "data": rows})


def safe_name(name: str) -> str:
    """A part of a metric's name that MLflow accepts, whatever a reason or a label holds."""
    return NOT_IN_NAMES.sub("_", name)[:NAME_CHARACTERS] or "_"


def _entry(name: str, digest: str, uri: str, profile: str, context: str) -> dict[str, Any]:
    return {"name": name, "digest": digest, "uri": uri, "profile": profile, "context": context}


def _schema(store: Store, output: StageOutput) -> str | None:
    """The columns of an output's documents, as MLflow's pages show them."""
    file = next(iter(sorted((store.path(output) / "documents").glob("*.parquet"))), None)
    if file is None:
        return None
    columns = [
        {"type": MLFLOW_TYPES.get(str(column.type), "string"), "name": column.name, "required": False}
        for column in pq.read_schema(file)
    ]
    return json.dumps({"mlflow_colspec": columns})


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _plain(value: Any) -> str:
    """A text without lone surrogates and NULs, which databases do not take."""
    return str(value).encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _plain(value)[:VALUE_CHARACTERS] for name, value in values.items()}


def _now() -> int:
    return int(time.time() * 1000)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
