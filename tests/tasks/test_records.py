"""What MLflow holds of a pipeline run once its records are sent."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from pipeline_config.environment import tracking_uri
from pipeline_config.settings import Packing, Settings, Source
from tasks import sender as module
from tasks.lineage import Node, RunRecord, new_run_id, node_of
from tasks.provenance import send_all
from tasks.records import Records, removal_table, stage_metrics
from tasks.sender import spool_root
from tasks.sources import Origin
from tasks.spool import Spool, spools
from tasks.stage import Stage, StageResult
from tasks.store import StageOutput, Store, write_json

STAGE = Stage("packing", "Pack tokens", version=1, artifacts=("note.txt", "tree"))
REPORT = {
    **{"read": 10, "kept": 7, "bytes": 1234},
    **{"removed": {"short": 2}, "failed": {"error:ValueError": 1}, "measures": {"tokens": 99}},
}
SETTINGS = Settings(
    name="tiny", sources=(Source(name="crawl", kind="installed_documentation", dump="TINY", licence="MIT"),)
)
INPUT = Node(stage="document_split", label="all", key="i" * 64, digest="abc" * 21 + "d")
ORIGIN = Origin("crawl", "s3://bucket/CC-MAIN/warc.paths.gz", "0123456789abcdef" * 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data folder for the module: MLflow takes seconds to make its tables."""
    return tmp_path_factory.mktemp("records")


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TOKENMILL_HOME", str(folder))
    return Store(folder / "store")


def open_records(store: Store, settings: Settings = SETTINGS, **facts: str) -> Records:
    run = RunRecord(id=new_run_id(), name=settings.name, started="2026", code="c0de", **facts)
    run.nodes.append(INPUT)
    records = Records(store, run)
    records.start_pipeline(settings)
    return records


@pytest.fixture
def records(store: Store) -> Records:
    return open_records(store, flow="build-corpus", flow_run_id="f-1")


@dataclass
class Recorded:
    """A stage that was recorded: its record, its result, and its place in the run."""

    record: str
    result: StageResult
    node: Node


def compute(store: Store, record: str | None, report: dict[str, Any], label: str) -> StageResult:
    """A stage's result as a runner would give it."""
    key = str(len(list(store.root.glob("packing/*")))).zfill(64)
    folder = store.building_folder("packing", key)
    (folder / "note.txt").write_text(f"made with {key}")
    for name in ("tree", "documents"):
        (folder / name).mkdir()
    (folder / "tree" / "leaf.txt").write_text("leaf")
    columns = {"text": ["a"], "tokens": [1], "score": [0.5], "good": [True]}
    pq.write_table(pa.table(columns), folder / "documents" / "part-00000.parquet")
    write_json(folder / "report.json", report)
    write_json(folder / "_computation.json", {"seconds": 1.25, "record": record})
    output = store.commit("packing", key, {}, label)
    return StageResult(output, report, False, seconds=2.0, computation=store.computation(output))


def run_stage(
    records: Records,
    report: dict[str, Any] = REPORT,
    label: str = "crawl",
    found: StageResult | None = None,
    origin: Origin | None = None,
    inputs: Sequence[Node] = (INPUT,),
) -> Recorded:
    """Records a stage as a run does; `found` is a result that the store had already."""
    record = records.start_stage(STAGE, label, Packing())
    result = replace(found, cached=True) if found else compute(records.store, record, report, label)
    node = node_of(result.output, [node.output for node in inputs])
    records.finish_stage(record, STAGE, result, node, origin)
    records.run.nodes.append(node)
    return Recorded(record, result, node)


def sent(records: Records, record: str = "") -> Run:
    """What MLflow has of a record (by default the pipeline run's), when everything is sent."""
    records.close()
    spool = Spool(records.spool.folder)
    assert (spool.waiting(), spool.refused()) == (0, [])
    return client().get_run(records.sender.answers[record or records.run.id])


def client() -> MlflowClient:
    return MlflowClient(tracking_uri())


def artifacts(run: Run) -> set[str]:
    return {file.path for file in client().list_artifacts(run.info.run_id)}


def read_artifact(run: Run, name: str) -> str:
    return Path(client().download_artifacts(run.info.run_id, name)).read_text("utf-8")


def test_the_pipeline_run_has_its_settings_sources_and_flow(records: Records) -> None:
    run = sent(records)
    assert (run.info.run_name, run.info.status) == ("tiny", "RUNNING")
    tags = {name: run.data.tags[name] for name in ("preset", "run", "record", "code", "kind")}
    assert tags == {
        **{"preset": "tiny", "run": records.run.id, "record": records.run.id},
        **{"code": "c0de", "kind": "pipeline"},
    }
    assert run.data.tags["prefect.flow"] == "build-corpus"
    assert run.data.tags["prefect.url"].endswith("/runs/flow-run/f-1")
    assert run.data.params["sources.crawl.dump"] == "TINY"
    assert run.data.params["sources.crawl.licence"] == "MIT"
    assert Settings.model_validate_json(read_artifact(run, "settings.json")) == SETTINGS


def test_a_run_outside_of_prefect_has_no_flow(store: Store) -> None:
    tags = sent(open_records(store)).data.tags
    assert not [name for name in tags if name.startswith("prefect")]


def test_a_stage_is_a_child_run_with_its_settings(records: Records) -> None:
    stage = run_stage(records)
    run = sent(records, stage.record)
    assert (run.info.run_name, run.info.status) == ("01 packing crawl", "FINISHED")
    assert run.data.tags["mlflow.parentRunId"] == records.sender.answers[records.run.id]
    assert (run.data.tags["stage"], run.data.tags["label"]) == ("packing", "crawl")
    assert run.data.params == {"batch_documents": "256"}
    assert run.info.end_time >= run.info.start_time


def test_a_stage_says_what_it_made_of_what(records: Records) -> None:
    stage = run_stage(records, origin=ORIGIN)
    run = sent(records, stage.record)
    expected = {
        "key": stage.result.output.key,
        "digest": stage.result.output.digest,
        "consumes": f"{INPUT.digest[:36]} {ORIGIN.digest[:36]}",
        "cached": "false",
        "computed_by": run.info.run_id,
        "record": stage.record,
    }
    assert {name: run.data.tags.get(name) for name in expected} == expected


def test_every_count_of_the_ledger_is_a_metric(records: Records) -> None:
    assert sent(records, run_stage(records).record).data.metrics == {
        "read": 10,
        "kept": 7,
        "bytes": 1234,
        "removed/short": 2,
        "failed/error_ValueError": 1,
        "tokens": 99,
        "removal_rate": pytest.approx(0.3),
        "seconds": 1.25,
        "task_seconds": 2.0,
    }


def test_the_removal_rate_is_left_out_where_nothing_was_read() -> None:
    assert "removal_rate" not in stage_metrics({"read": 0, "kept": 0})
    assert stage_metrics({"measures": {"steps": 3}}) == {"steps": 3.0}


def test_reasons_whose_names_become_one_are_added_up() -> None:
    assert stage_metrics({"removed": {"a:b": 2, "a.b": 3}}) == {"removed/a_b": 5}


def test_two_runs_have_the_same_metric_names(store: Store) -> None:
    names = []
    for label in ("one", "two"):
        records = open_records(store)
        stage = run_stage(records, label=label)
        names.append(set(sent(records, stage.record).data.metrics))
    assert names[0] == names[1] == set(stage_metrics(REPORT)) | {"seconds", "task_seconds"}


def test_inputs_and_output_are_datasets_with_their_digests(records: Records) -> None:
    stage = run_stage(records, origin=ORIGIN)
    run = sent(records, stage.record)
    found = {
        (item.tags[0].value, item.dataset.name, item.dataset.digest) for item in run.inputs.dataset_inputs
    }
    assert found == {
        ("input", "document_split all", INPUT.digest[:36]),
        ("input", "crawl", ORIGIN.digest[:36]),
        ("output", "packing crawl", stage.node.digest[:36]),
    }


def test_a_dataset_says_where_it_lies_what_its_columns_are_and_how_much_was_kept(records: Records) -> None:
    stage = run_stage(records, origin=ORIGIN)
    by_name = {item.dataset.name: item.dataset for item in sent(records, stage.record).inputs.dataset_inputs}
    made, origin = by_name["packing crawl"], by_name["crawl"]
    assert json.loads(origin.source)["uri"] == ORIGIN.uri
    assert json.loads(made.source)["uri"] == str(records.store.path(stage.result.output))
    assert json.loads(made.profile) == {"stage": "packing", "key": stage.node.key, "read": 10, "kept": 7}
    columns = {column["name"]: column["type"] for column in json.loads(made.schema)["mlflow_colspec"]}
    assert columns == {"text": "string", "tokens": "long", "score": "double", "good": "boolean"}


def test_the_pipeline_run_has_every_output_as_a_dataset(records: Records) -> None:
    for label in ("one", "two"):
        run_stage(records, label=label)
    inputs = sent(records).inputs.dataset_inputs
    assert sorted(item.dataset.name for item in inputs) == ["packing one", "packing two"]


def test_a_stage_has_its_papers_and_small_files_as_artifacts(records: Records) -> None:
    stage = run_stage(records)
    run = sent(records, stage.record)
    assert artifacts(run) == {"manifest.json", "report.json", "removals.json", "note.txt", "tree"}
    assert json.loads(read_artifact(run, "manifest.json"))["digest"] == stage.node.digest
    assert read_artifact(run, "tree/leaf.txt") == "leaf"


def test_what_was_removed_is_a_table_that_mlflow_shows(records: Records) -> None:
    stage = run_stage(records)
    run = sent(records, stage.record)
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "removals.json", "type": "table"}]
    table = json.loads(read_artifact(run, "removals.json"))
    assert table["columns"] == ["stage", "source", "fate", "reason", "records", "share_of_read"]
    assert table["data"] == [
        ["packing", "crawl", "removed", "short", 2, 0.2],
        ["packing", "crawl", "failed", "error:ValueError", 1, 0.1],
    ]


def test_a_large_artifact_is_left_out(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.records.LARGEST_ARTIFACT_BYTES", 10)
    assert artifacts(sent(records, run_stage(records).record)) == {"removals.json", "tree"}


def test_a_cached_stage_names_the_run_that_computed_it(records: Records) -> None:
    first = run_stage(records)
    second = run_stage(records, found=first.result)
    run = sent(records, second.record)
    assert run.data.tags["cached"] == "true"
    assert run.data.tags["computed_by"] == records.sender.answers[first.record] != run.info.run_id
    assert artifacts(run) == {"manifest.json", "report.json", "removals.json"}


def test_a_cached_stage_of_an_earlier_run_is_linked_too(store: Store) -> None:
    earlier = open_records(store)
    first = run_stage(earlier)
    computed_by = sent(earlier, first.record).info.run_id
    later = open_records(store)
    second = run_stage(later, found=first.result)
    later.describe_pipeline("", {"report": (first.record, "/artifacts/report.html")})
    assert sent(later, second.record).data.tags["computed_by"] == computed_by
    assert f"/runs/{computed_by}/artifacts/report.html?" in sent(later).data.tags["mlflow.note.content"]


def test_a_cached_stage_without_a_record_names_nobody(records: Records) -> None:
    nobody = compute(records.store, None, REPORT, "crawl")
    assert "computed_by" not in sent(records, run_stage(records, found=nobody).record).data.tags


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("no more", id="plain"),
        pytest.param("x" * 100_000, id="long"),
        pytest.param("a\ud800b", id="lone surrogate"),
        pytest.param("a\0b\n\x1b[31m", id="control characters"),
    ],
)
def test_a_failed_stage_is_marked_with_its_error(records: Records, message: str) -> None:
    record = records.start_stage(STAGE, "crawl", Packing())
    records.fail_stage(record, ValueError(message))
    run = sent(records, record)
    assert run.info.status == "FAILED"
    assert run.data.tags["error"].startswith(f"ValueError: {message[0]}")
    assert "\0" not in run.data.tags["error"]  # PostgreSQL takes none


@pytest.mark.parametrize(
    ("succeeded", "status"),
    [pytest.param(True, "FINISHED", id="success"), pytest.param(False, "FAILED", id="failure")],
)
def test_the_pipeline_run_is_closed_with_the_figures_of_its_stages(
    records: Records, succeeded: bool, status: str
) -> None:
    stages = [run_stage(records), run_stage(records, label="")]
    records.finish_pipeline([stage.result for stage in stages], succeeded)
    run = sent(records)
    assert run.info.status == status
    figures = {"read": 10, "kept": 7, "removed/short": 2, "failed/error_ValueError": 1}
    assert run.data.metrics == {
        f"packing/{label}/{name}": value
        for label in ("crawl", "all")
        for name, value in (figures | {"removal_rate": pytest.approx(0.3)}).items()
    }
    table = json.loads(read_artifact(run, "removals.json"))
    assert [row[1] for row in table["data"]] == ["crawl", "crawl", "", ""]


def test_a_run_that_fails_before_its_first_stage_is_closed_too(records: Records) -> None:
    records.finish_pipeline([], False)
    assert sent(records).info.status == "FAILED"


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("error:ValueError", id="colon"),
        pytest.param("a b<>\"'%\\|é中\t", id="other characters"),
        pytest.param("a//b", id="two slashes"),
        pytest.param("../../x", id="path that climbs"),
        pytest.param("a/", id="slash at the end"),
        pytest.param("", id="empty"),
        pytest.param("a\ud800\0b", id="lone surrogate and NUL"),
        pytest.param("x" * 1000, id="long"),
    ],
)
def test_a_strange_reason_is_recorded(records: Records, reason: str) -> None:
    report = {"read": 10, "kept": 7, "removed": {reason: 3}, "failed": {}}
    stage = run_stage(records, label="l" * 64)
    stage.result.report = report
    again = run_stage(records, found=stage.result, label="l" * 64)
    records.finish_pipeline([stage.result], True)
    run = sent(records, again.record)
    assert [v for n, v in run.data.metrics.items() if n.startswith("removed/")] == [3]
    assert [v for n, v in sent(records).data.metrics.items() if "/removed/" in n] == [3]


@pytest.mark.parametrize(
    "label",
    [
        pytest.param("a:b/../c<>'\"%é中", id="characters"),
        pytest.param("", id="empty"),
        pytest.param("x" * 64, id="as long as a source's name may be"),
    ],
)
def test_a_strange_label_is_recorded(records: Records, label: str) -> None:
    stage = run_stage(records, label=label)
    records.finish_pipeline([stage.result], True)
    run = sent(records, stage.record)
    assert (run.info.status, run.data.tags["label"]) == ("FINISHED", label)
    assert sent(records).info.status == "FINISHED"


def test_a_run_may_have_many_sources_and_reasons(store: Store) -> None:
    one = SETTINGS.sources[0]
    sources = tuple(one.model_copy(update={"name": f"source-{number}"}) for number in range(60))
    records = open_records(store, SETTINGS.model_copy(update={"sources": sources}))
    reasons = {f"reason {number}": 1 for number in range(1200)}
    stage = run_stage(records, {"read": 1300, "kept": 100, "removed": reasons, "failed": {}})
    records.finish_pipeline([stage.result], True)
    run = sent(records)
    assert all(run.data.params[f"sources.{source.name}.dump"] == "TINY" for source in sources)
    assert sum("/removed/" in name for name in run.data.metrics) == 1200
    assert "mlflow.loggedArtifacts" in run.data.tags


def test_curves_have_a_point_for_each_step(records: Records) -> None:
    record = records.start_stage(STAGE, "all", Packing())
    points = [(step, {"loss": 3.0 - step / 1000, "rate": 0.1}) for step in range(1500)]
    records.log_points(record, points[:700])
    records.log_points(record, points[700:])
    run_id = sent(records, record).info.run_id
    history = client().get_metric_history(run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(n, v["loss"]) for n, v in points]


def test_a_curve_may_diverge(records: Records) -> None:
    record = records.start_stage(STAGE, "all", Packing())
    records.log_points(record, [(0, {"loss": math.inf}), (1, {"loss": math.nan})])
    run_id = sent(records, record).info.run_id
    history = client().get_metric_history(run_id, "loss")
    assert [point.step for point in history] == [0, 1]
    assert math.isnan(history[1].value)


def test_the_description_of_a_run_links_its_pages(records: Records) -> None:
    stage = run_stage(records)
    pages = {"corpus report": (stage.record, "/artifacts/report.html"), "unknown": ("no record", "")}
    records.describe_pipeline("| stage | kept |", pages)
    run = sent(records)
    note = run.data.tags["mlflow.note.content"]
    place = f"#/experiments/{run.info.experiment_id}/runs/{records.sender.answers[stage.record]}"
    assert f"[corpus report]({place}/artifacts/report.html?workflowType=machine_learning)" in note
    assert "[flow run in Prefect](http" in note
    assert note.endswith("\n\n| stage | kept |")
    assert "unknown" not in note


def test_the_description_of_a_stage_links_those_before_and_after_it(records: Records) -> None:
    maker = run_stage(records, label="maker")
    stage = run_stage(records, inputs=[maker.node])
    note = unquote(sent(records, stage.record).data.tags["mlflow.note.content"])
    experiment = records.sender.answers["experiment"]
    place = f"#/experiments/{experiment}/runs/{records.sender.answers[maker.record]}"
    assert f"[packing maker]({place}?workflowType=machine_learning)" in note
    assert f"tags.consumes LIKE '%{stage.node.digest[:36]}%'" in note
    users = client().search_runs([experiment], f"tags.consumes LIKE '%{maker.node.digest[:36]}%'")
    assert [run.data.tags["record"] for run in users] == [stage.record]
    assert f"dataset.digest = '{stage.node.digest[:36]}'" in note
    having = client().search_runs([experiment], f"dataset.digest = '{stage.node.digest[:36]}'")
    assert {run.data.tags["record"] for run in having} == {stage.record, records.run.id}


def test_texts_files_and_tags_of_the_pipeline_run(records: Records, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    records.log_text("| a\ud800 |", "funnel.md")
    records.describe_pipeline("| b\ud800\0 |", {})
    records.log_files({"takedown/x.json": tmp_path / "x.json"})
    records.tag({"takedown": "d" * 64, "odd": "a\ud800\0b"})
    run = sent(records)
    assert read_artifact(run, "funnel.md") == "| a? |"
    assert read_artifact(run, "takedown/x.json") == "{}"
    assert run.data.tags["takedown"] == "d" * 64
    assert run.data.tags["odd"].startswith("a")
    assert "| b" in run.data.tags["mlflow.note.content"]


def test_the_pages_of_a_run_have_addresses_once_mlflow_has_them(records: Records) -> None:
    stage = run_stage(records)
    run = sent(records, stage.record)
    assert f"/runs/{run.info.run_id}/artifacts/x.html?" in (
        records.page(stage.record, "/artifacts/x.html") or ""
    )
    assert f"/runs/{sent(records).info.run_id}?" in (records.page() or "")
    assert records.page("unknown") is None


def test_runs_go_to_one_experiment_and_leave_no_spool(store: Store) -> None:
    runs = [sent(open_records(store)) for _ in range(2)]
    assert runs[0].info.experiment_id == runs[1].info.experiment_id
    assert client().get_experiment(runs[0].info.experiment_id).name == "tokenmill"
    assert not spools(spool_root())


def test_what_a_killed_run_left_is_sent_by_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module.Sender, "start", lambda sender: None)
        killed = open_records(store)
    stage = run_stage(killed)
    assert Spool(killed.spool.folder).waiting() > 5
    sent(open_records(store))
    assert not killed.spool.folder.exists()
    experiment = client().get_experiment_by_name("tokenmill").experiment_id
    (run,) = client().search_runs([experiment], f"tags.record = '{stage.record}'")
    assert run.info.status == "FINISHED"


def test_nobody_else_sends_the_records_of_a_run_that_goes_on(records: Records) -> None:
    with Spool(records.spool.folder).lock() as mine:
        assert not mine
    assert list(send_all(spool_root(), records.store)) == []
    assert sent(records).info.run_name == "tiny"


def test_a_run_says_which_of_its_records_wait_and_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(module, "LAST_WAIT_SECONDS", 0.2)
    records = open_records(store)
    records.finish_pipeline([], True)
    with caplog.at_level(logging.WARNING, "prefect.records"):
        records.close()
    (said,) = (record.message for record in caplog.records if "not in MLflow yet" in record.message)
    assert said.startswith("4 records are not in MLflow yet")
    assert str(records.spool.folder) in said
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sum(count for _, count in send_all(spool_root(), store)) == 4


def test_the_share_of_a_reason_needs_no_records_read() -> None:
    output = StageOutput(stage="packing", key="k", digest="d", label="all")
    result = StageResult(output, {"measures": {"tokens": 1}}, False, seconds=0.0)
    assert json.loads(removal_table([result]))["data"] == []
