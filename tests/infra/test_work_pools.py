"""prefect.yaml on a real server, and its flows run by real workers, with accounts, from another folder."""

import asyncio
import json
import re
import subprocess
import time
from typing import Any
from uuid import UUID

import pytest
from docker.types import HostConfig
from mlflow.tracking import MlflowClient
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun
from prefect.states import Scheduled

from pipeline_config.presets import load_settings
from tests.infra.stack import INFRA, Stack, commands

RUN_SECONDS = 600
SECRET = re.compile("PASSWORD|ACCESS_KEY")


@pytest.fixture(scope="module")
def pools(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """The stack with the deployments of prefect.yaml, registered by OPERATING.md's commands elsewhere."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    script = commands("register").replace("infra/prefect.yaml", str(INFRA / "prefect.yaml"))
    environment = stack.environment("worker")
    exports = "".join(f"export {name}='{environment[name]}'\n" for name in environment)
    stack.run(exports + script, elsewhere)
    return stack


def start(stack: Stack, deployment: str, parameters: dict[str, Any] | None = None) -> UUID:
    """Asks for a run of a deployment, as the form does."""
    with stack.client() as client:
        found = client.read_deployment_by_name(deployment)
        run = client.create_flow_run_from_deployment(found.id, parameters=parameters or {}, state=Scheduled())
        return run.id


def finished(stack: Stack, *runs: UUID) -> list[FlowRun]:
    """The runs, when they have ended."""
    deadline = time.monotonic() + RUN_SECONDS
    with stack.client() as client:
        while time.monotonic() < deadline:
            found = [client.read_flow_run(run) for run in runs]
            if all(run.state and run.state.is_final() for run in found):
                return found
            time.sleep(1)
    pytest.fail(f"still {[run.state_name for run in found]} after {RUN_SECONDS} s")


def test_all_flows_are_registered_with_their_forms(pools: Stack):
    with pools.client() as client:
        deployments = client.read_deployments()
    assert len(deployments) == 14
    assert all(deployment.pull_steps == [] for deployment in deployments)
    training = next(d for d in deployments if d.entrypoint and d.entrypoint.endswith("train_language_model"))
    assert training.work_pool_name == "process-gpu"
    assert "settings" in training.parameter_openapi_schema["properties"]


@pytest.mark.slow
def test_two_workers_share_the_runs_of_a_pool_and_listen_to_nobody(pools: Stack):
    workers = [pools.start_worker(name, wait=False) for name in ("first", "second")]
    for worker in workers:
        worker.wait()
        assert worker.listening() == set()
    runs = finished(pools, *(start(pools, "audit-flush/process") for _ in workers))
    assert {run.state_name for run in runs} == {"Completed"}
    for worker in workers:
        assert sum(f"'{run.name}' submitted to" in worker.text() for run in runs) == 1, worker.text()
        worker.stop()


@pytest.mark.parametrize("pool", ["docker", "docker-gpu"])
def test_a_container_reads_its_secrets_from_blocks_when_it_starts(pools: Stack, pool: str):
    docker = pytest.importorskip("prefect_docker.worker", reason="needs prefect-docker (extra `test`)")
    secrets = {"mlflow-password": "a", "storage-key-id": "b", "storage-secret-key": "c"}
    template = INFRA / "work_pools" / f"{pool}.json"
    command = (
        f"docker compose exec worker python -m prefect work-pool create --overwrite --type docker {pool}"
    )
    pools.run(f"{command} --base-job-template {template}", pools.folder)
    with pools.settings():
        for name, value in secrets.items():
            Secret(value=value).save(name, overwrite=True)
        configuration = asyncio.run(docker_job(docker.DockerWorkerJobConfiguration, pool))
    found = {
        configuration.env[name] for name in configuration.env if name.endswith(("PASSWORD", "_ID", "_KEY"))
    }
    assert found == set(secrets.values())
    assert configuration.env["EXTRA"] == "1"
    options = HostConfig(version="1.47", **configuration.container_create_kwargs)
    assert options["CapDrop"] == ["ALL"]
    assert ("DeviceRequests" in options) == pool.endswith("gpu")


async def docker_job(kind: Any, pool: str) -> Any:
    """The container that a worker would start, from the pool as the server keeps it."""
    async with get_client() as client:
        stored = (await client.read_work_pool(pool)).base_job_template
        assert "{{ prefect.blocks.secret.mlflow-password }}" in json.dumps(stored)
        return await kind.from_template_and_values(stored, {"env": {"EXTRA": "1"}}, client=client)


@pytest.mark.slow
def test_a_model_is_trained_on_a_pool_with_accounts_and_no_secret_gets_out(
    pools: Stack, tiny_preset: str, monkeypatch: pytest.MonkeyPatch
):
    settings = load_settings(tiny_preset).model_dump(mode="json")
    worker = pools.start_worker("trainer", pool="process-gpu")
    (run,) = finished(pools, start(pools, "train-language-model/process", {"settings": settings}))
    worker.stop()
    assert run.state_name == "Completed", worker.text()[-5000:]
    assert run.parameters["settings"] == settings

    for name, value in pools.environment("worker").items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(pools.running["mlflow"].address)
    experiment = client.get_experiment_by_name("tokenmill")
    assert experiment
    assert experiment.artifact_location.startswith("mlflow-artifacts:/")
    runs = client.search_runs([experiment.experiment_id])
    assert "pipeline" in {run.data.tags["kind"] for run in runs}
    assert client.get_registered_model("tokenmill-tiny").aliases == {"current": "1"}
    assert {name.rpartition("/")[2] for name in bucket_names(pools)} >= {"report.html", "removals.json"}
    check_that_no_secret_got_out(pools, run)


def bucket_names(stack: Stack) -> list[str]:
    """What is in the bucket of MLflow's artifacts."""
    import s3fs

    environment = stack.environment("mlflow")
    return list(
        s3fs.S3FileSystem(
            key=environment["AWS_ACCESS_KEY_ID"],
            secret=environment["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=environment["AWS_ENDPOINT_URL"],
        ).find("mlflow")
    )


def check_that_no_secret_got_out(stack: Stack, run: FlowRun) -> None:
    """Looks for every secret in whatever is kept or shown of a run."""
    places = {"run": run.model_dump_json()}
    with stack.client() as client:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])), limit=200)
        places["log"] = json.dumps([log.model_dump(mode="json") for log in logs])
        places["pools"] = json.dumps([pool.model_dump(mode="json") for pool in client.read_work_pools()])
        places["deployments"] = json.dumps([d.model_dump(mode="json") for d in client.read_deployments()])
    assert "model_publication" in places["log"]
    for database in ("prefect", "mlflow"):
        places[database] = stack.postgres.run("pg_dump", database)
    for path in [*stack.home.rglob("*"), *stack.folder.glob("*/log")]:
        if path.is_file():
            places[str(path)] = path.read_bytes().decode("utf-8", "replace")
    command_lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    places["command lines"] = command_lines
    found = {place for place, text in places.items() for secret in stack.secrets.values() if secret in text}
    assert found == set()
