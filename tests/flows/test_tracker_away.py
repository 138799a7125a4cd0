"""MLflow is away, slow or fails at random: runs go on, and nothing that they record is lost or doubled."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from flows.build_corpus import build_corpus
from flows.command_line import Outcome
from pipeline_config.environment import tracking_uri
from pipeline_config.settings import Packing, Settings, Source
from tasks import sender as sending
from tasks.audit.questions import flush
from tasks.lineage import RunRecord, all_runs, new_run_id, node_of
from tasks.records import Records
from tasks.stage import Stage, StageResult
from tasks.store import StageOutput, Store, write_json

SEED = 20261129
SERVER = ("--workers", "1", "--host", "127.0.0.1")
SLACK_SECONDS = 10  # of a machine that is busy
STEPS = 1200  # points of a curve: more than one batch holds
WORDS = (
    "the",
    "of",
    "a",
    "river",
    "mill",
    "stone",
    "water",
    "turns",
    "grain",
    "into",
    "flour",
    "and",
    "bread",
)
SETTINGS = Settings(name="synthetic", sources=(Source(name="s", kind="installed_documentation"),))
SOURCES = ("one", "two", "three")
OWN = {
    "mlflow.note.content",
    "mlflow.parentRunId",
    "mlflow.user",
    "computed_by",
    "record",
    "run",
    "prefect.url",
}
OWN |= {"prefect.flow_run_id", "key", "code"}


FAULTS = ("down", "silent", "slow", "random failures")


class Faults:
    """A proxy in front of MLflow that can be away, silent, slow, or fail at random."""

    def __init__(self, target: int):
        self.target = target
        self.port = free_port()
        self.under_way = 0
        self.lock = threading.Lock()
        self.server: ThreadingHTTPServer | None = None
        self.behave()

    def behave(self, how: str = "well") -> None:
        """Changes what happens to requests from now on: one of `FAULTS`, or `well`."""
        self.how, self.chance, self.known = how, random.Random(SEED), set[str]()
        if how == "down" and self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None
        if how != "down" and not self.server:
            self.server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
            self.server.daemon_threads = True
            threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def settle(self) -> None:
        """Waits for requests whose senders have given up, but which are still on their way to MLflow."""
        while self.under_way:
            time.sleep(0.05)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Passes a request on, or does what the present fault demands."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self.lock:
            self.under_way += 1
            how, dice = self.how, self.chance.random()
            kind = f"{request.command} {request.path.partition('?')[0]}"
            new = kind not in self.known
            self.known.add(kind)
        try:
            if how == "random failures" and dice < 0.2 and not new:
                answer(request, 500, b"<html>oops</html>")
                return
            while how == "silent" == self.how:
                time.sleep(0.05)
            if how == "slow":
                time.sleep(
                    0.04 if dice > 0.05 or "model" in request.path else 1.3
                )  # the client waits for 1 s
            status, content = self.forward(request, body)
            if how == "random failures" and (new or dice > 0.8):
                request.connection.shutdown(socket.SHUT_RDWR)  # MLflow has done it, but nobody is told
            else:
                answer(request, status, content)
        except OSError:
            request.close_connection = True  # the client has given up
        finally:
            with self.lock:
                self.under_way -= 1

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """What MLflow says to a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=60)
        connection.request(request.command, request.path, body, dict(request.headers))
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, content

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                pass

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", self.handle_of)
        return Handler

    @property
    def handle_of(self) -> Callable[[BaseHTTPRequestHandler], None]:
        """`handle` as a method of a request handler."""
        return lambda request: self.handle(request)


def answer(request: BaseHTTPRequestHandler, status: int, content: bytes) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real MLflow server."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    database = ("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}")
    artifacts = ("--artifacts-destination", str(folder / "artifacts"))
    command = [sys.executable, "-m", "mlflow", "server", *SERVER, "--port", str(port), *database, *artifacts]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True
    )
    try:
        wait_for_server(process, port, folder / "log")
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def wait_for_server(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


@pytest.fixture(scope="module")
def faults(server: int) -> Iterator[Faults]:
    faults = Faults(server)
    yield faults
    faults.behave("down")


@pytest.fixture(autouse=True)
def impatience(home: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records go through the proxy, which behaves well before and after each test; pauses are short."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{faults.port}")
    monkeypatch.setattr(sending, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(sending, "LONGEST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(sending, "LAST_WAIT_SECONDS", 2.0)
    yield
    faults.behave("well")


def record_synthetic_run(during: Callable[[int], None] = lambda number: None) -> str:
    """Records a run of three stages, a curve and a model, without computing anything; returns its id."""
    store = Store(sending.home() / "store")
    run = RunRecord(id=new_run_id(), name="synthetic", started="2026", code="c")
    records = Records(store, run)
    records.start_pipeline(SETTINGS)
    stage = Stage("packing", "Pack", version=1, artifacts=("note.txt",))
    results: list[StageResult] = []
    for number, label in enumerate(SOURCES):
        during(number)
        record = records.start_stage(stage, label, Packing())
        results.append(made := result(store, record, label))
        node = node_of(made.output, [results[0].output] if number else [])
        records.finish_stage(record, stage, made, node)
        run.nodes.append(node)
    records.log_points(record, [(step, {"loss": 1.0 / (step + 1)}) for step in range(STEPS)])
    records.log_model(
        record,
        f"model-{run.id}",
        "c" * 64,
        step=STEPS,
        files={"README.md": "card"},
        params={"layers": 1},
        tags={"checkpoint": f"c-{run.id}"},
        metrics={"last_val_loss": 2.5},
        data=node,
    )
    failed = records.start_stage(stage, "failed", Packing())
    records.fail_stage(failed, ValueError("a fault of its own"))
    records.log_text("table", "funnel.md")
    records.describe_pipeline("table", {"note": (record, "/artifacts/note.txt")})
    records.finish_pipeline(results, True)
    records.close()
    return run.id


def result(store: Store, record: str, label: str) -> StageResult:
    """A stage's result that is the same in every home."""
    report = {"read": 10, "kept": 7, "removed": {"short": 2}, "failed": {"error:X": 1}, "measures": {"m": 5}}
    folder = store.building_folder("packing", key := label.ljust(64, "0"))
    (folder / "note.txt").write_text(f"a note on {label}")
    write_json(folder / "report.json", report)
    write_json(folder / "_computation.json", {"seconds": 1.0, "record": record})
    output: StageOutput = store.commit("packing", key, {}, label)
    return StageResult(output, report, False, seconds=2.0, computation=store.computation(output))


def flush_all(faults: Faults) -> None:
    """What `python -m flows.audit flush` does; nothing may be left then.

    A run's own thread may still be sending; in a process of its own it would have ended with it.
    """
    faults.behave("well")
    deadline = time.monotonic() + 60
    while (answer := flush())["waiting"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (answer["waiting"], answer["refused"], answer["problem"]) == (0, [], None)
    faults.settle()


def snapshot(uri: str, run: str) -> dict[str, Any]:
    """All that MLflow has of a pipeline run, but what differs from one time to the next."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tokenmill").experiment_id
    runs = client.search_runs([experiment], f"tags.run = '{run}'", ViewType.ACTIVE_ONLY)
    records = [found.data.tags["record"] for found in runs]
    assert len(set(records)) == len(records)
    parents = {found.data.tags.get("mlflow.parentRunId") for found in runs}
    (main,) = (found.info.run_id for found in runs if found.data.tags["record"] == run)
    assert parents == {None, main}
    return {str(found.info.run_name): facts(client, found) for found in runs} | {
        "models": models(client, experiment, run)
    }


def facts(client: MlflowClient, run: Run) -> dict[str, Any]:
    """A run as plain data. Times and losses of one run are its own, so of seconds only the names count."""
    run_id = run.info.run_id
    assert run.info.end_time >= run.info.start_time
    histories = {name: client.get_metric_history(run_id, name) for name in run.data.metrics}
    return {
        "status": run.info.status,
        "params": run.data.params,
        "tags": {name: value for name, value in run.data.tags.items() if name not in OWN},
        "described": "mlflow.note.content" in run.data.tags,
        "metrics": {
            name: [(p.step, None if "seconds" in name else p.value) for p in points]
            for name, points in histories.items()
        },
        "artifacts": artifacts(client, run_id),
        "datasets": sorted(
            (i.dataset.name, i.dataset.digest, i.tags[0].value) for i in run.inputs.dataset_inputs
        ),
        "models": [output.step for output in run.outputs.model_outputs] if run.outputs else [],
    }


def artifacts(client: MlflowClient, run_id: str, folder: str | None = None) -> list[str]:
    found = []
    for file in client.list_artifacts(run_id, folder):
        found += artifacts(client, run_id, file.path) if file.is_dir else [file.path]
    return sorted(found)


def models(client: MlflowClient, experiment: str, run: str) -> list[Any]:
    """The models that a run made and registered."""
    name = f"model-{run}"
    logged = [
        (str(model.status), model.params, model.tags["mlflow.modelVersions"].replace(run, ""))
        for model in client.search_logged_models([experiment], f"name = '{name}'")
    ]
    versions = client.search_model_versions(f"name = '{name}'")
    aliases = [client.get_registered_model(name).aliases] if versions else []
    return [*logged, *[int(version.version) for version in versions], *aliases]


@pytest.fixture(scope="module")
def expected(faults: Faults, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What MLflow has of a synthetic run when nothing goes wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_HOME", str(tmp_path_factory.mktemp("calm")))
        patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{faults.port}")
        run = record_synthetic_run()
        flush_all(faults)
        return snapshot(tracking_uri(), run)


def test_a_server_that_behaves_has_everything_once(expected: dict[str, Any]) -> None:
    names = [f"0{number} packing {label}" for number, label in enumerate([*SOURCES, "failed"], start=1)]
    assert sorted(expected) == [*names, "models", "synthetic"]
    assert [expected[name]["status"] for name in ("synthetic", *names)] == ["FINISHED"] * 4 + ["FAILED"]
    last = expected["03 packing three"]
    assert last["metrics"]["loss"] == [(step, 1.0 / (step + 1)) for step in range(STEPS)]
    assert last["metrics"]["removed/short"] == [(0, 2.0)]
    assert last["artifacts"] == ["manifest.json", "note.txt", "removals.json", "report.json"]
    assert [entry[0] for entry in last["datasets"]] == ["packing one", "packing three"]
    assert last["models"] == [STEPS]
    assert expected["models"][1:] == [1, {"current": "1"}]
    assert expected["synthetic"]["metrics"]["packing/two/kept"] == [(0, 7.0)]
    assert expected["synthetic"]["artifacts"] == ["funnel.md", "removals.json", "settings.json"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_recorded_while_mlflow_is_in_trouble_is_there_later_and_once(
    fault: str, faults: Faults, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    faults.behave(fault)
    started = time.monotonic()
    run = record_synthetic_run()
    assert time.monotonic() - started < sending.LAST_WAIT_SECONDS + SLACK_SECONDS
    flush_all(faults)
    assert snapshot(tracking_uri(), run) == expected


def test_a_server_that_comes_back_gets_everything_before_the_run_ends(
    faults: Faults, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LAST_WAIT_SECONDS", 60.0)
    run = record_synthetic_run(lambda number: faults.behave("well" if number else "down"))
    assert flush() == {"sent": 0, "waiting": 0, "refused": [], "problem": None}
    assert snapshot(tracking_uri(), run) == expected


def test_what_cannot_be_sent_waits_and_the_answer_says_why(faults: Faults) -> None:
    faults.behave("down")
    record_synthetic_run()
    answer = flush()
    assert (answer["sent"], answer["refused"]) == (0, [])
    assert answer["waiting"] > 20
    assert "Connection refused" in answer["problem"]
    faults.behave("well")
    assert flush() == {"sent": answer["waiting"], "waiting": 0, "refused": [], "problem": None}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a corpus of thirty short documents."""
    chance, path = random.Random(SEED), tmp_path_factory.mktemp("documents") / "documents.jsonl"
    texts = [" ".join(chance.choices(WORDS, k=100)) for _ in range(30)]
    path.write_text("\n".join(json.dumps({"text": text, "id": f"d{n}"}) for n, text in enumerate(texts)))
    source = Source(name="tales", kind="documents", uris=(str(path),), stages=())
    return Settings.model_validate(
        {"name": "tales", "sources": [source], "document_split": {"validation_share": 0.3}}
        | {"execution": {"workers": 1}}
    )


def digests(outcome: Outcome) -> dict[str, str]:
    return {name: output.digest for name, output in outcome.outputs.items()}


@pytest.mark.slow
def test_a_flow_makes_the_same_bytes_and_the_same_records_while_mlflow_fails_at_random(
    settings: Settings, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.behave("random failures")
    disturbed = build_corpus(settings)
    flush_all(faults)
    found = snapshot(tracking_uri(), all_runs()[-1].id)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "calm"))
    calm = build_corpus(settings)
    flush_all(faults)
    assert digests(disturbed) == digests(calm)
    assert found == snapshot(tracking_uri(), all_runs()[-1].id)
    assert {run["status"] for name, run in found.items() if name != "models"} == {"FINISHED"}
