"""OPERATING.md's commands for backup, restore and upgrade, on real servers."""

from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from prefect.client.schemas.actions import VariableCreate

from tests.infra.stack import Stack, commands

KEPT, LOST = "before_the_backup", "after_the_backup"


@pytest.fixture
def mlflow_client(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    for name, value in stack.environment("worker").items():
        monkeypatch.setenv(name, value)
    return MlflowClient(stack.running["mlflow"].address)


def leave_something(stack: Stack, client: MlflowClient, name: str) -> None:
    """Something in both servers, in the object store and in the working folder."""
    run = client.create_run(client.create_experiment(name))
    client.log_text(run.info.run_id, name, "note.txt")
    client.set_terminated(run.info.run_id)
    with stack.client() as prefect:
        prefect.create_variable(VariableCreate(name=name, value=name))
    (stack.home / name).write_text(name)


def left(stack: Stack, client: MlflowClient, name: str, folder: Path) -> set[str]:
    """Where it is."""
    found = set()
    if experiment := client.get_experiment_by_name(name):
        found.add("mlflow")
        for run in client.search_runs([experiment.experiment_id]):
            path = Path(client.download_artifacts(run.info.run_id, "note.txt", str(folder)))
            if path.read_text() == name:
                found.add("objects")
    with stack.client() as prefect:
        if prefect.read_variable_by_name(name):
            found.add("prefect")
    if (stack.home / name).exists():
        found.add("home")
    return found


def test_what_was_backed_up_is_restored(stack: Stack, mlflow_client: MlflowClient, tmp_path: Path):
    everywhere = {"mlflow", "objects", "prefect", "home"}
    leave_something(stack, mlflow_client, KEPT)
    stack.run(commands("back up"), tmp_path)
    leave_something(stack, mlflow_client, LOST)
    assert left(stack, mlflow_client, LOST, tmp_path) == everywhere
    lose_everything(stack)
    stack.run(commands("restore"), tmp_path)
    start_servers(stack)
    assert left(stack, mlflow_client, KEPT, tmp_path) == everywhere
    assert left(stack, mlflow_client, LOST, tmp_path) == set()


def lose_everything(stack: Stack) -> None:
    """Both servers' databases, all objects and the working folder."""
    for server in stack.running.values():
        server.service.stop()
    for name in ("prefect", "mlflow"):
        stack.postgres.run("dropdb", name)
    stack.run(
        "docker compose exec worker python -c \"import fsspec; s3 = fsspec.filesystem('s3'); "
        "[s3.rm(name) for bucket in ('mlflow', 'tokenmill') for name in s3.find(bucket)]\"",
        stack.folder,
    )
    for path in stack.home.iterdir():
        if path.is_file():
            path.unlink()


def start_servers(stack: Stack) -> None:
    for server in stack.running.values():
        server.service.start(wait=False)
    for server in stack.running.values():
        server.service.wait()


def test_databases_are_migrated_by_the_commands_and_stay_as_they_are(
    stack: Stack, mlflow_client: MlflowClient, tmp_path: Path
):
    before = {name: stack.postgres.run("pg_dump", "--schema-only", name) for name in ("prefect", "mlflow")}
    printed = stack.run(commands("migrate"), tmp_path)
    assert not [secret for secret in stack.secrets.values() if secret in printed]
    after = {name: stack.postgres.run("pg_dump", "--schema-only", name) for name in ("prefect", "mlflow")}
    strip = lambda text: [line for line in text.splitlines() if "restrict" not in line]  # noqa: E731
    assert {n: strip(t) for n, t in before.items()} == {n: strip(t) for n, t in after.items()}
