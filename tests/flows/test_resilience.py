"""SIGKILL of whatever takes part in a run, at seeded moments: the run ends as if nothing had happened."""

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from flows.train_language_model import train_language_model
from pipeline_config.errors import TokenmillError
from pipeline_config.settings import STAGES, Settings
from tests.outputs import manifests
from tests.services.postgres import Postgres
from tests.services.served import Served, processes_of, wait_for

SEED = 20261130
WITH_WORKERS = [
    stage for stage in STAGES if stage not in ("document_import", "corpus_publication", "model_publication")
]
KILLS_OF_SERVERS, LONGEST_PAUSE_SECONDS = 3, 8.0


class Killer(threading.Thread):
    """Kills one process of each stage, a random one at a random moment, as they come."""

    def __init__(self, home: Path, chance: random.Random):
        super().__init__(daemon=True)
        self.home, self.chance = home, chance
        self.waiting = list(WITH_WORKERS)
        self.longest_pause = 1.5
        self.ended = threading.Event()

    def run(self) -> None:
        while self.waiting and not self.ended.wait(0.02):
            stage = next((stage for stage in self.waiting if self._workers(stage)), None)
            if stage is None:
                continue
            time.sleep(self.chance.uniform(0, self.longest_pause))
            if found := self._workers(stage):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.chance.choice(found), signal.SIGKILL)
                    self.waiting.remove(stage)

    def _workers(self, stage: str) -> list[int]:
        return [process for process, line in processes_of(self.home) if f"/store/{stage}/." in line]


@pytest.mark.slow
def test_a_worker_of_every_stage_is_killed_and_a_rerun_changes_nothing(
    tiny: Callable[..., Settings], tiny_run: SimpleNamespace, home: Path
) -> None:
    settings, killer = tiny("execution.workers=2"), Killer(home, random.Random(SEED))
    killer.start()
    failures = 0
    while killer.waiting:
        try:
            train_language_model(settings)
        except TokenmillError:
            failures += 1
            assert failures <= 2 * len(WITH_WORKERS)
            continue
        killer.longest_pause /= 2
        for stage in list(killer.waiting):  # it ended before it could be hit: once more
            shutil.rmtree(home / "store" / stage)
    killer.ended.set()
    killer.join()
    train_language_model(settings)
    assert failures >= len(WITH_WORKERS) - 2
    assert manifests(home) == tiny_run.manifests
    assert not list(home.glob("store/*/.*.building"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any, tiny_preset: str, postgres: Postgres) -> Iterator[Served]:
    """Everything, with both servers on PostgreSQL."""
    prefect, mlflow = postgres.database(), postgres.database()
    environment = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": prefect.url("postgresql+asyncpg"),
        "MLFLOW_BACKEND_STORE_URI": mlflow.url("postgresql+psycopg"),
    }
    served = Served(tmp_path_factory.mktemp("resilience"), ["--preset", tiny_preset], **environment)
    try:
        served.start()
        yield served
    finally:
        served.end()


def retry(served: Served, run: str) -> None:
    """What the Retry button does."""
    state: Any = {"type": "SCHEDULED", "name": "AwaitingRetry"}
    served.api("POST", f"flow_runs/{run}/set_state", state=state, force=True)
    wait_for(lambda: served.state(run) in ("Running", "Pending"), 90, served.said)


@pytest.mark.slow
def test_servers_and_database_are_killed_and_nothing_is_lost_or_doubled(
    served: Served, postgres: Postgres, tiny_run: SimpleNamespace
) -> None:
    chance = random.Random(SEED)
    run = served.run("train-language-model", "tiny")
    wait_for(lambda: served.state(run) == "Running", 60, served.said)
    kills = [kill_prefect, kill_mlflow, kill_postgres] * KILLS_OF_SERVERS
    chance.shuffle(kills)
    for kill in kills:
        time.sleep(chance.uniform(0, LONGEST_PAUSE_SECONDS))
        kill(served, postgres)
    while served.ended(run) != "Completed":
        retry(served, run)
    assert manifests(served.home) == tiny_run.manifests
    assert served.ended(served.run("audit-flush", "tokenmill")) == "Completed"
    assert not list((served.home / "mlflow" / "spool").glob("*/[0-9]*.json"))
    assert doubled(served.mlflow) == {}


def kill_prefect(served: Served, postgres: Postgres) -> None:
    kill(served, "prefect server start")


def kill_mlflow(served: Served, postgres: Postgres) -> None:
    kill(served, "flows.mlflow_server")


def kill_postgres(served: Served, postgres: Postgres) -> None:
    postgres.kill()
    time.sleep(1)
    postgres.start()


def kill(served: Served, *what: str) -> None:
    for process, line in list(processes_of(served.home)):
        if any(part in line for part in what):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def doubled(address: str) -> dict[str, int]:
    """Records that MLflow has more than one run for, with their number."""
    client = MlflowClient(address)
    experiment = client.get_experiment_by_name("tokenmill")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    counts = Counter(run.data.tags["record"] for run in runs)
    assert len(counts) > len(STAGES) - 2
    return {record: number for record, number in counts.items() if number > 1}


@pytest.mark.slow
def test_eight_thresholds_at_once_compute_what_they_share_once(served: Served) -> None:
    words = (40, 60, 80, 100, 120, 140, 160, 160)
    path = "quality_filtering.gopher_quality.min_doc_words"
    runs = [
        served.run("build-corpus", "tiny", {path: number, "sample_crawl.warc_files": 3}) for number in words
    ]
    assert [served.ended(run, 600) for run in runs] == ["Completed"] * len(words)
    for stage in ("sample_crawl", "url_filtering", "text_extraction", "language_identification"):
        assert computed(served, runs, stage) == 1, stage
    assert computed(served, runs, "quality_filtering") == len(set(words))


def computed(served: Served, runs: list[str], stage: str) -> int:
    """How many of the runs computed a stage, as their logs say."""
    return sum(f"computing {stage} " in served.log(run) for run in runs)


@pytest.mark.slow
def test_a_flow_that_died_is_shown_as_crashed_within_two_minutes_and_goes_on(served: Served) -> None:
    """The runner is killed with the flow, so that nobody but the heartbeat can tell."""
    run = served.run("train-language-model", "tiny", {"training.steps": 100_000})
    wait_for(lambda: "step 6 of 100,000" in served.log(run), 200, served.said)
    kill(served, "flows.deployments", "prefect.engine")
    wait_for(lambda: served.state(run) == "Crashed", 120, lambda: served.state(run))
    assert "nothing was heard of it" in served.flow_run(run)["state"]["message"]
    assert not any("model.train" in line for _, line in processes_of(served.home))
    retry(served, run)
    wait_for(lambda: served.state(run) == "Running", 90, served.said)
