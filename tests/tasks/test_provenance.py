"""What MLflow is told of a pipeline run."""

import json
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from pipeline_config.settings import Packing, Settings, Source
from tasks.provenance import Provenance, stage_metrics
from tasks.stage import Stage, StageResult
from tasks.store import StageOutput, Store, write_json

STAGE = Stage("packing", "Pack tokens", version=1, artifacts=("note.txt",))
REPORT = {
    **{"read": 10, "kept": 7, "seconds": 1.5},
    **{"removed": {"short": 2}, "failed": {"error:ValueError": 1}, "measures": {"tokens": 99}},
}
SETTINGS = Settings(
    name="tiny", sources=(Source(name="crawl", kind="installed_documentation", dump="TINY", licence="MIT"),)
)
INPUT = StageOutput(stage="document_split", key="i" * 64, digest="abc" * 21 + "d", label="all")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for the module: MLflow takes seconds to make its tables."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def provenance(database: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Provenance:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    provenance = Provenance(Store(home / "store"))
    provenance.start_pipeline(SETTINGS)
    return provenance


@pytest.fixture
def client(database: str) -> MlflowClient:
    return MlflowClient(database)


def result(store: Store, report: dict = REPORT, label: str = "crawl", cached: bool = False) -> StageResult:
    key = str(len(list(store.root.glob("*/*")))).zfill(64)
    folder = store.building_folder("packing", key)
    (folder / "note.txt").write_text(f"made in {store.root}")
    write_json(folder / "report.json", report)
    output = store.commit("packing", key, {}, label)
    return StageResult(output, report, cached, seconds=2.0)


def record(provenance: Provenance, client: MlflowClient, made: StageResult) -> Run:
    run_id = provenance.start_stage(STAGE, made.output.label, Packing())
    provenance.finish_stage(run_id, STAGE, made, [INPUT])
    return client.get_run(run_id)


def test_the_pipeline_run_has_its_settings_sources_and_flow(
    provenance: Provenance, client: MlflowClient
) -> None:
    run = client.get_run(provenance.parent)
    assert (run.info.run_name, run.info.status) == ("tiny", "RUNNING")
    assert run.data.tags["preset"] == "tiny"
    assert {"prefect.flow", "prefect.flow_run_id", "prefect.flow_run_name"} <= run.data.tags.keys()
    assert run.data.params["sources.crawl.dump"] == "TINY"
    assert run.data.params["sources.crawl.licence"] == "MIT"
    path = client.download_artifacts(provenance.parent, "settings.json")
    assert Settings.model_validate_json(Path(path).read_text()) == SETTINGS


def test_a_stage_is_a_child_run_with_its_settings(provenance: Provenance, client: MlflowClient) -> None:
    run = record(provenance, client, result(provenance.store))
    assert (run.info.run_name, run.info.status) == ("packing crawl", "FINISHED")
    assert run.data.tags["mlflow.parentRunId"] == provenance.parent
    assert (run.data.tags["stage"], run.data.tags["label"]) == ("packing", "crawl")
    assert run.data.params == {"batch_documents": "256"}


def test_a_stage_run_has_its_key_digest_and_artifacts(provenance: Provenance, client: MlflowClient) -> None:
    made = result(provenance.store)
    run = record(provenance, client, made)
    assert (run.data.tags["key"], run.data.tags["digest"]) == (made.output.key, made.output.digest)
    assert (run.data.tags["cached"], run.data.tags["computed_by"]) == ("false", run.info.run_id)
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"manifest.json", "report.json", "note.txt"}


def test_every_count_of_the_ledger_is_a_metric(provenance: Provenance, client: MlflowClient) -> None:
    assert record(provenance, client, result(provenance.store)).data.metrics == {
        "read": 10,
        "kept": 7,
        "seconds": 1.5,
        "removed/short": 2,
        "failed/error_ValueError": 1,
        "tokens": 99,
        "removal_rate": pytest.approx(0.3),
        "task_seconds": 2.0,
    }


def test_the_removal_rate_is_left_out_where_nothing_was_read() -> None:
    assert "removal_rate" not in stage_metrics({"read": 0, "kept": 0})
    assert stage_metrics({"measures": {"steps": 3}}) == {"steps": 3.0}


def test_inputs_and_output_are_datasets_with_their_digests(
    provenance: Provenance, client: MlflowClient
) -> None:
    made = result(provenance.store)
    run = record(provenance, client, made)
    found = {
        item.tags[0].value: (item.dataset.name, item.dataset.digest) for item in run.inputs.dataset_inputs
    }
    assert found == {
        "input": ("document_split all", INPUT.digest[:36]),
        "output": ("packing crawl", made.output.digest[:36]),
    }


def test_a_dataset_says_where_it_lies_and_how_much_was_kept(
    provenance: Provenance, client: MlflowClient
) -> None:
    made = result(provenance.store)
    run = record(provenance, client, made)
    (output,) = (i.dataset for i in run.inputs.dataset_inputs if i.tags[0].value == "output")
    assert json.loads(output.source)["uri"] == str(provenance.store.path(made.output))
    profile = json.loads(output.profile)
    assert profile == {"stage": "packing", "key": made.output.key, "read": 10, "kept": 7}


def test_the_pipeline_run_has_every_output_as_a_dataset(provenance: Provenance, client: MlflowClient) -> None:
    for label in ("one", "two"):
        record(provenance, client, result(provenance.store, label=label))
    inputs = client.get_run(provenance.parent).inputs.dataset_inputs
    assert sorted(item.dataset.name for item in inputs) == ["packing one", "packing two"]


def test_a_cached_stage_names_the_run_that_computed_it(provenance: Provenance, client: MlflowClient) -> None:
    made = result(provenance.store)
    first = record(provenance, client, made)
    made.cached = True
    second = record(provenance, client, made)
    assert second.info.run_id != first.info.run_id
    assert second.data.tags["computed_by"] == first.info.run_id
    assert second.data.tags["cached"] == "true"
    assert "note.txt" not in {file.path for file in client.list_artifacts(second.info.run_id)}


def test_a_cached_stage_without_a_record_names_nobody(provenance: Provenance, client: MlflowClient) -> None:
    run = record(provenance, client, result(provenance.store, cached=True))
    assert run.data.tags.get("computed_by", "") == ""


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("no more", id="plain"),
        pytest.param("x" * 100_000, id="long"),
        pytest.param("a\ud800b", id="lone surrogate"),
        pytest.param("a\0b\n\x1b[31m", id="control characters"),
    ],
)
def test_a_failed_stage_is_marked_with_its_error(
    provenance: Provenance, client: MlflowClient, message: str
) -> None:
    run_id = provenance.start_stage(STAGE, "crawl", Packing())
    provenance.fail_stage(run_id, ValueError(message))
    run = client.get_run(run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["error"].startswith(f"ValueError: {message[0]}")


@pytest.mark.parametrize(
    ("succeeded", "status"),
    [pytest.param(True, "FINISHED", id="success"), pytest.param(False, "FAILED", id="failure")],
)
def test_the_pipeline_run_is_closed_with_the_figures_of_its_stages(
    provenance: Provenance, client: MlflowClient, succeeded: bool, status: str
) -> None:
    provenance.finish_pipeline([result(provenance.store), result(provenance.store, label="")], succeeded)
    run = client.get_run(provenance.parent)
    assert run.info.status == status
    assert run.data.metrics == {
        **{"packing/crawl/read": 10, "packing/crawl/kept": 7, "packing/all/read": 10, "packing/all/kept": 7}
    }


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("error:ValueError", id="colon"),
        pytest.param("a b<>\"'%\\|é中\t", id="other characters"),
        pytest.param("a//b", id="two slashes"),
        pytest.param("../../x", id="path that climbs"),
        pytest.param("a/", id="slash at the end"),
        pytest.param("x" * 1000, id="long"),
    ],
)
def test_a_strange_reason_is_recorded(provenance: Provenance, client: MlflowClient, reason: str) -> None:
    report = {"read": 10, "kept": 7, "removed": {reason: 3}, "failed": {}}
    run = record(provenance, client, result(provenance.store, report))
    counts = [value for name, value in run.data.metrics.items() if name.startswith("removed")]
    assert (run.info.status, counts) == ("FINISHED", [3])


@pytest.mark.parametrize(
    "label",
    [
        pytest.param("a:b/../c<>'\"%é中", id="characters"),
        pytest.param("", id="empty"),
        pytest.param("x" * 64, id="as long as a source's name may be"),
    ],
)
def test_a_strange_label_is_recorded(provenance: Provenance, client: MlflowClient, label: str) -> None:
    run = record(provenance, client, made := result(provenance.store, label=label))
    assert (run.info.status, run.data.tags["label"]) == ("FINISHED", label)
    provenance.finish_pipeline([made], True)
    assert client.get_run(provenance.parent).info.status == "FINISHED"


def test_a_run_may_have_many_sources(provenance: Provenance, client: MlflowClient) -> None:
    one = SETTINGS.sources[0]
    sources = tuple(one.model_copy(update={"name": f"source-{number}"}) for number in range(30))
    provenance.start_pipeline(SETTINGS.model_copy(update={"sources": sources}))
    params = client.get_run(provenance.parent).data.params
    assert all(params[f"sources.source-{number}.dump"] == "TINY" for number in range(30))


def test_curves_have_a_point_for_each_step(provenance: Provenance, client: MlflowClient) -> None:
    run_id = provenance.start_stage(STAGE, "all", Packing())
    for step, loss in enumerate((3.0, 2.0)):
        provenance.log_metrics(run_id, {"train_loss": loss}, step)
    history = client.get_metric_history(run_id, "train_loss")
    assert [(point.step, point.value) for point in history] == [(0, 3.0), (1, 2.0)]


def test_runs_go_to_one_experiment(provenance: Provenance, client: MlflowClient) -> None:
    again = Provenance(provenance.store)
    assert again.experiment == provenance.experiment
    assert client.get_experiment(again.experiment).name == "tokenmill"
