"""The tracker: whatever is sent twice is recorded once, and only what MLflow will never take is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2 as codes
from mlflow.tracking import MlflowClient

from pipeline_config.environment import tracking_uri
from tasks import provenance as module
from tasks.provenance import CURRENT, Tracker, send_all
from tasks.spool import Spool
from tasks.store import Store

DIGEST = "d" * 36


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data folder for the module: MLflow takes seconds to make its tables."""
    return tmp_path_factory.mktemp("provenance")


class Sender:
    """Sends operations to MLflow, each of them more than once."""

    def __init__(self, folder: Path, name: str):
        self.tracker = Tracker(Store(folder / "store"))
        self.client: MlflowClient = self.tracker.client
        self.experiment = self.tracker.experiment
        self.spool = Spool(folder / "spool" / name)
        self.name = name

    def once(self, name: str, files: Any = None, /, **arguments: Any) -> None:
        """Sends an operation; it must not be refused."""
        self.spool.add(name, files, **arguments)
        before = len(self.spool.refused())
        self.spool.send(self.tracker.send)
        assert len(self.spool.refused()) == before, self.spool.refused()[-1]["error"]

    def thrice(self, name: str, files: Any = None, /, **arguments: Any) -> None:
        """Sends an operation, again as if the answer was lost, and again by one who knows no answers."""
        self.once(name, files, **arguments)
        self.once(name, files, **arguments)
        self.spool = Spool(self.spool.folder.with_name(f"{self.spool.folder.name}."))
        self.once(name, files, **arguments)

    def start(self, record: str = "", parent: str | None = None, **tags: str) -> str:
        """Opens a run and returns its id."""
        record = record or self.name
        self.once(
            "start_run", record=record, parent=parent, tags={"mlflow.runName": record, **tags}, started=1
        )
        return str(self.spool.answers()[record])

    def runs(self, record: str) -> list[Any]:
        """All runs with a record, but those that were deleted."""
        return list(self.client.search_runs([self.experiment], f"tags.record = '{record}'"))


@pytest.fixture
def sender(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sender:
    monkeypatch.setenv("TOKENMILL_HOME", str(folder))
    monkeypatch.setattr(module, "CONFLICT_PAUSE_SECONDS", 0.01)
    return Sender(folder, "".join(c if c.isalnum() else "-" for c in request.node.name))


def test_a_run_that_is_started_twice_is_one_run(sender: Sender) -> None:
    sender.thrice("start_run", record="r", parent=None, tags={"mlflow.runName": "x", "a": "b"}, started=7)
    (run,) = sender.runs("r")
    assert (run.info.run_name, run.info.start_time, run.data.tags["a"]) == ("x", 7, "b")
    assert sender.spool.answers()["r"] == run.info.run_id


def test_a_child_finds_its_parent_by_record(sender: Sender) -> None:
    parent = sender.start("mother")
    sender.spool = Spool(sender.spool.folder.with_name("another"))
    sender.start("child", "mother")
    assert sender.runs("child")[0].data.tags["mlflow.parentRunId"] == parent


def test_the_extra_run_of_a_lost_answer_is_deleted(sender: Sender) -> None:
    for _ in range(2):
        sender.client.create_run(sender.experiment, tags={"record": "twin"})
    kept = sender.start("twin")
    assert [run.info.run_id for run in sender.runs("twin")] == [kept]
    deleted = sender.client.search_runs(
        [sender.experiment], "tags.record = 'twin'", run_view_type=ViewType.DELETED_ONLY
    )
    assert len(deleted) == 1


def test_a_run_that_arrives_late_is_deleted_at_the_end_and_the_one_with_the_data_is_kept(
    sender: Sender,
) -> None:
    kept = sender.start()
    for _ in range(3):  # one of them has an id that sorts first, most likely
        sender.client.create_run(sender.experiment, tags={"record": sender.name})
    sender.thrice("end_run", record=sender.name, status="FINISHED", ended=9)
    assert [run.info.run_id for run in sender.runs(sender.name)] == [kept]
    info = sender.client.get_run(kept).info
    assert (info.status, info.end_time) == ("FINISHED", 9)


def test_points_params_and_tags_that_are_sent_twice_are_there_once(sender: Sender) -> None:
    run_id = sender.start()
    points = [["loss", float(step), 1000, step] for step in range(3)]
    sender.thrice("log", record=sender.name, metrics=points, params={"p": "1"}, tags={"t": "x"})
    run = sender.client.get_run(run_id)
    assert (run.data.params, run.data.tags["t"], run.data.metrics) == ({"p": "1"}, "x", {"loss": 2.0})
    history = sender.client.get_metric_history(run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_more_than_a_batch_holds_is_sent_in_several(sender: Sender) -> None:
    run_id = sender.start()
    sender.thrice(
        "log",
        record=sender.name,
        metrics=[[f"m{n}", 1.0, 1, 0] for n in range(2500)],
        params={f"p{n}": "1" for n in range(250)},
        tags={f"t{n}": "1" for n in range(250)},
    )
    run = sender.client.get_run(run_id)
    assert (len(run.data.metrics), len(run.data.params)) == (2500, 250)
    assert sum(name.startswith("t") for name in run.data.tags) == 250


def test_datasets_that_are_sent_twice_are_there_once(sender: Sender) -> None:
    run_id = sender.start()
    names = [("in", "input"), ("out", "output")]
    datasets = [
        {"name": n, "digest": DIGEST, "uri": f"s3://{n}", "profile": "{}", "context": c} for n, c in names
    ]
    sender.thrice("log_datasets", record=sender.name, datasets=datasets)
    inputs = sender.client.get_run(run_id).inputs.dataset_inputs
    assert sorted((i.dataset.name, i.tags[0].value) for i in inputs) == names
    assert len({i.dataset.digest for i in inputs}) == 1


def test_artifacts_descriptions_and_makers_that_are_sent_twice_are_there_once(sender: Sender) -> None:
    run_id = sender.start()
    sender.thrice("log_artifacts", {"a/b.txt": "text"}, record=sender.name)
    sender.thrice("log_computed_by", record=sender.name, computed_by=sender.name)
    sender.thrice("describe", record=sender.name, markdown="text", links={}, outside={"page": "http://x"})
    run = sender.client.get_run(run_id)
    assert [file.path for file in sender.client.list_artifacts(run_id, "a")] == ["a/b.txt"]
    assert run.data.tags["computed_by"] == run_id
    assert run.data.tags["mlflow.note.content"] == "[page](http://x)\n\ntext"


def model_operation(name: str, checkpoint: str = "c1", finished: int = 1, **changes: Any) -> dict[str, Any]:
    """The arguments of `log_model` for a checkpoint that the run `name` trained."""
    return {
        **{"record": f"{name} {checkpoint}", "run": name, "name": name, "step": 5, "params": {"layers": "1"}},
        **{"tags": {"checkpoint": f"{name}-{checkpoint}"}, "metrics": {"last_val_loss": 2.5}},
        **{"dataset": ["packing all", DIGEST], "finished": finished},
    } | changes


def send_model(sender: Sender, checkpoint: str = "c1", finished: int = 1) -> None:
    sender.once("log_model", {"README.md": "card"}, **model_operation(sender.name, checkpoint, finished))


def start_training(sender: Sender) -> str:
    """A run with the dataset that models are trained on; returns its id."""
    run_id = sender.start()
    dataset = {"name": "packing all", "digest": DIGEST, "uri": "x", "profile": "{}", "context": "input"}
    sender.once("log_datasets", record=sender.name, datasets=[dataset])
    return run_id


def models(sender: Sender) -> list[Any]:
    return list(sender.client.search_logged_models([sender.experiment], f"name = '{sender.name}'"))


def versions(sender: Sender) -> list[Any]:
    found = sender.client.search_model_versions(f"name = '{sender.name}'")
    return sorted(found, key=lambda version: int(version.version))


def current(sender: Sender) -> str | None:
    """The checkpoint that the alias names."""
    aliases = sender.client.get_registered_model(sender.name).aliases
    if CURRENT not in aliases:
        return None
    version = sender.client.get_model_version_by_alias(sender.name, CURRENT)
    return str(version.tags["checkpoint"]).rpartition("-")[2]


def test_a_model_is_logged_once_with_its_run_data_and_card(sender: Sender) -> None:
    run_id = start_training(sender)
    sender.thrice("log_model", {"README.md": "card"}, **model_operation(sender.name))
    (model,) = models(sender)
    assert (model.status, model.source_run_id, model.params) == (
        LoggedModelStatus.READY,
        run_id,
        {"layers": "1"},
    )
    (metric,) = model.metrics
    assert (metric.key, metric.value, metric.step) == ("last_val_loss", 2.5, 5)
    assert (metric.dataset_name, metric.dataset_digest) == ("packing all", DIGEST)
    run = sender.client.get_run(run_id)
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert len(sender.client.get_metric_history(run_id, "last_val_loss")) == 1
    assert [file.path for file in sender.client.list_logged_model_artifacts(model.model_id)] == ["README.md"]


def test_a_model_is_registered_once_with_its_tags_and_the_alias(sender: Sender) -> None:
    run_id = start_training(sender)
    sender.thrice("log_model", {"README.md": "card"}, **model_operation(sender.name))
    assert [int(version.version) for version in versions(sender)] == [1]
    version = sender.client.get_model_version(sender.name, "1")
    (model,) = models(sender)
    assert (version.run_id, version.aliases) == (run_id, [CURRENT])
    assert version.source == f"models:/{model.model_id}"
    assert version.tags["checkpoint"] == f"{sender.name}-c1"
    registered = json.loads(model.tags["mlflow.modelVersions"])
    assert registered == [{"name": sender.name, "version": 1}]


def test_the_extra_model_and_version_of_lost_answers_are_deleted(sender: Sender) -> None:
    run_id = start_training(sender)
    record = {"record": f"{sender.name} c1"}
    for _ in range(2):
        sender.client.create_logged_model(sender.experiment, sender.name, run_id, record)
    send_model(sender)
    (model,) = models(sender)
    with module._global_tracking_uri(sender.client.tracking_uri):
        sender.client.create_model_version(
            sender.name, f"models:/{model.model_id}", run_id, tags=record, model_id=model.model_id
        )
    send_model(sender)
    assert [int(version.version) for version in versions(sender)] == [1]
    assert [found.model_id for found in models(sender)] == [model.model_id]
    assert current(sender) == "c1"


def test_a_model_whose_output_was_linked_without_an_answer_is_registered(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a request whose answer was lost, and the second one breaks a constraint."""
    start_training(sender)
    log_outputs = sender.client.log_outputs

    def twice(run_id: str, outputs: list[LoggedModelOutput]) -> None:
        log_outputs(run_id, outputs)
        log_outputs(run_id, outputs)

    monkeypatch.setattr(sender.client, "log_outputs", twice)
    send_model(sender)
    assert current(sender) == "c1"


@pytest.mark.parametrize(
    ("finished", "expected"),
    [
        pytest.param([1, 2], "c1", id="in order"),
        pytest.param([2, 1], "c0", id="the older one is sent later"),
    ],
)
def test_the_alias_names_the_model_that_was_finished_last(
    sender: Sender, finished: list[int], expected: str
) -> None:
    start_training(sender)
    for number, time in enumerate(finished):
        send_model(sender, f"c{number}", time)
    assert [int(version.version) for version in versions(sender)] == [1, 2]
    assert current(sender) == expected


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        pytest.param(["c2"], "c1", id="to an older version"),
        pytest.param(["c2", "c1"], "c0", id="to one that is older still"),
        pytest.param(["c0"], "c2", id="not, for an old one"),
        pytest.param(["c0", "c1", "c2"], None, id="away"),
    ],
)
def test_a_superseded_model_loses_the_alias(sender: Sender, marked: list[str], expected: str | None) -> None:
    start_training(sender)
    for number in range(3):
        send_model(sender, f"c{number}", number)
    for checkpoint in marked:
        tags = {"superseded_by": "", "warning": "trained on documents that had to go"}
        sender.thrice("mark", digest=f"{sender.name}-{checkpoint}", tags=tags)
    assert current(sender) == expected
    told = {version.tags["checkpoint"] for version in versions(sender) if "warning" in version.tags}
    assert told == {f"{sender.name}-{checkpoint}" for checkpoint in marked}
    assert sum("warning" in model.tags for model in models(sender)) == len(marked)


def test_a_mark_that_warns_only_leaves_the_alias(sender: Sender) -> None:
    start_training(sender)
    send_model(sender)
    sender.once("mark", digest=f"{sender.name}-c1", tags={"warning": "look"})
    assert current(sender) == "c1"


def test_a_mark_is_on_every_run_with_the_digest_and_on_no_other(sender: Sender) -> None:
    for record, digest in (("one", "d1"), ("two", "d1"), ("three", "d2")):
        sender.start(f"{sender.name}-{record}", digest=digest)
    sender.thrice("mark", digest="d1", tags={"superseded_by": "d3"})
    marked = sender.client.search_runs([sender.experiment], "tags.superseded_by = 'd3'")
    assert {run.info.run_name for run in marked} == {f"{sender.name}-{n}" for n in ("one", "two")}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param("log", {"record": "nobody", "tags": {"a": "b"}}, id="no such run"),
        pytest.param("log_artifacts", {"record": "nobody"}, id="no such run for files"),
        pytest.param(
            "start_run",
            {"record": "orphan", "parent": "nobody", "tags": {}, "started": 1},
            id="no such parent",
        ),
        pytest.param("log_model", model_operation("nobody"), id="no such run for a model"),
        pytest.param("log", {"record": "SELF", "metrics": [["x" * 300, 1.0, 1, 0]]}, id="too long a name"),
        pytest.param("log", {"record": "SELF", "params": {"p": "2"}}, id="a parameter that changed"),
        pytest.param("be_later", {"record": "SELF"}, id="an operation of a later version"),
    ],
)
def test_what_mlflow_will_never_take_is_refused(sender: Sender, name: str, arguments: dict[str, Any]) -> None:
    sender.start()
    sender.once("log", record=sender.name, params={"p": "1"})
    record = sender.name if arguments["record"] == "SELF" else arguments["record"]
    sender.spool.add(name, {"x": "x"}, **arguments | {"record": record})
    sender.spool.send(sender.tracker.send)
    (refused,) = sender.spool.refused()
    assert refused["error"]
    sender.once("log", record=sender.name, tags={"after": "1"})
    assert sender.runs(sender.name)[0].data.tags["after"] == "1"


def http_error(status: int) -> requests.HTTPError:
    return requests.HTTPError(f"{status}", response=SimpleNamespace(status_code=status))  # type: ignore[arg-type]


GATEWAY = "API request to endpoint /api/2.0/mlflow/runs/log-batch failed with error code 404 != 200"


@pytest.mark.parametrize(
    ("error", "never"),
    [
        pytest.param(
            MlflowException("API request to http://x failed with exception refused"), False, id="away"
        ),
        pytest.param(MlflowException(GATEWAY, codes.RESOURCE_DOES_NOT_EXIST), False, id="404 of a gateway"),
        pytest.param(MlflowException("locked", codes.TEMPORARILY_UNAVAILABLE), False, id="a busy database"),
        pytest.param(MlflowException("?", codes.INTERNAL_ERROR), False, id="500"),
        pytest.param(MlflowException("?", codes.PERMISSION_DENIED), False, id="a token that ran out"),
        pytest.param(MlflowException("?", codes.REQUEST_LIMIT_EXCEEDED), False, id="too many requests"),
        pytest.param(MlflowException("?", codes.INVALID_PARAMETER_VALUE), True, id="an invalid value"),
        pytest.param(MlflowException("?", codes.RESOURCE_DOES_NOT_EXIST), True, id="no such run"),
        pytest.param(MlflowException("?", codes.BAD_REQUEST), True, id="a constraint that stays broken"),
        pytest.param(requests.ConnectionError("reset"), False, id="a broken upload"),
        pytest.param(http_error(502), False, id="an upload that a gateway did not pass on"),
        pytest.param(http_error(403), False, id="an upload without the right"),
        pytest.param(http_error(413), True, id="an upload that is too large"),
        pytest.param(OSError(28, "disk full"), False, id="a full disk"),
    ],
)
def test_only_a_permanent_error_is_refused(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, error: Exception, never: bool
) -> None:
    sender.start()
    monkeypatch.setattr(sender.client, "log_batch", fail(error, times=1000))
    sender.spool.add("log", record=sender.name, tags={"a": "b"})
    try:
        sender.spool.send(sender.tracker.send)
    except type(error):
        assert not never
    assert (sender.spool.waiting(), len(sender.spool.refused())) == ((0, 1) if never else (1, 0))


def fail(error: Exception, times: int, then: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function that fails so many times."""
    left = [times]

    def call(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return then(*arguments, **named) if then else None

    return call


def test_two_that_trip_each_other_try_again(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = sender.start()
    broken = MlflowException("UNIQUE constraint failed", codes.BAD_REQUEST)
    monkeypatch.setattr(sender.client, "log_inputs", fail(broken, 2, sender.client.log_inputs))
    dataset = {"name": "n", "digest": "d", "uri": "u", "profile": "{}", "context": "input"}
    sender.once("log_datasets", record=sender.name, datasets=[dataset])
    assert len(sender.client.get_run(run_id).inputs.dataset_inputs) == 1


def test_a_registry_that_fails_once_loses_no_model(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    start_training(sender)
    away = MlflowException("API request to http://x failed with exception reset")
    create = fail(away, 1, sender.client.create_registered_model)
    monkeypatch.setattr(sender.client, "create_registered_model", create)
    with pytest.raises(MlflowException, match="reset"):
        send_model(sender)
    sender.spool.send(sender.tracker.send)
    assert not sender.spool.refused()
    assert current(sender) == "c1"


def test_an_experiment_that_another_machine_makes_first_is_used(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = MlflowClient.get_experiment_by_name
    answers: list[Any] = [None]
    monkeypatch.setattr(
        MlflowClient,
        "get_experiment_by_name",
        lambda client, name: answers.pop() if answers else look(client, name),
    )
    assert Tracker(Store(Path(sender.spool.folder))).experiment == sender.experiment
    assert not answers


def test_a_spool_that_cannot_be_sent_does_not_keep_the_others_waiting(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1-poison", "2-good"):
        Spool(tmp_path / name).add(
            "start_run", record=f"{sender.name}{name}", parent=None, tags={}, started=1
        )
    Spool(tmp_path / "1-poison").add("log", record=f"{sender.name}1-poison", tags={"a": "b"})
    monkeypatch.setattr(MlflowClient, "log_batch", fail(MlflowException("always"), 1000))
    sent = []
    with pytest.raises(MlflowException, match="always"):
        sent.extend((s.folder.name, count) for s, count in send_all(tmp_path, Store(tmp_path / "store")))
    assert [path.name for path in tmp_path.iterdir() if path.name[0].isdigit()] == ["1-poison"]
    assert len(sender.runs(f"{sender.name}2-good")) == 1


def test_mlflow_is_told_nothing_outside_of_the_data_folder(sender: Sender, folder: Path) -> None:
    start_training(sender)
    send_model(sender)
    assert tracking_uri() == f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}"
    (model,) = models(sender)
    assert Path(model.artifact_location.removeprefix("file://")).is_relative_to(folder)
