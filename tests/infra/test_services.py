"""What the tests' own services promise."""

import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest

from tests.services.postgres import Postgres
from tests.services.process import new_secret
from tests.services.servers import Bucket, Factory

STARTER = """
import sys, time
from pathlib import Path
from tests.services.process import Service, clean_environment
command = ["bash", "-c", "sleep 60 & sleep 60"]
service = Service(command, Path(sys.argv[1]), clean_environment(), lambda service: len(service.pids()) == 3)
service.start()
print(*service.pids(), flush=True)
time.sleep(60)
"""


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_service_and_its_children_end_with_a_starter_that_is_killed(tmp_path: Path):
    command = [sys.executable, "-c", STARTER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout
        pids = starter.stdout.readline().split()
        assert [pid for pid in pids if alive(pid)] == pids
        starter.kill()
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if alive(pid)] == []


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_postgres_keeps_its_data_and_port(postgres: Postgres, end: str):
    database = postgres.database()
    postgres.run("psql", "-qc", "CREATE TABLE kept AS SELECT 42 AS answer", **database.environment)
    getattr(postgres, end)()
    postgres.start()
    assert "42" in postgres.run("psql", "-c", "TABLE kept", **database.environment)


def test_a_bucket_is_found_by_its_environment(s3: Bucket, monkeypatch: pytest.MonkeyPatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with fsspec.open(f"{s3.url}/folder/file", "wb", skip_instance_cache=True) as file:
        file.write(b"text")
    assert s3.names() == ["folder/file"]


def test_servers_start_on_fresh_databases_and_a_bucket(own_services: Factory, postgres: Postgres, s3: Bucket):
    passwords = new_secret(), new_secret()
    prefect = own_services.prefect_server(postgres.database(), passwords[0], wait=False)
    mlflow = own_services.mlflow_server(postgres.database(), passwords[1], artifacts=s3, wait=False)
    pairs = ((prefect, "/api/admin/version", passwords[0]), (mlflow, "/version", passwords[1]))
    for server, path, password in pairs:
        server.service.wait()
        assert server.get(path)[0] == 401
        assert server.get(path, f"tokenmill:{password}")[0] == 200
