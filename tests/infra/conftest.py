"""The services of compose.yaml, for all tests of this folder."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.infra.stack import INFRA, Stack, composed, filled_in
from tests.services.postgres import Postgres
from tests.services.process import free_port
from tests.services.servers import Factory


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, s3_server: str) -> Iterator[Stack]:
    """Both servers with accounts, on PostgreSQL and an object store, as in compose.yaml; no worker yet."""
    pytest.importorskip("psycopg", reason="needs psycopg (extra `test`)")
    folder = tmp_path_factory.mktemp("stack")
    secrets, ports = filled_in(folder), {"prefect": str(free_port()), "mlflow": str(free_port())}
    addresses = {
        "DATABASE_HOST: postgres": "DATABASE_HOST: 127.0.0.1",
        "PGHOST: postgres": "PGHOST: 127.0.0.1",
        '"5432"': str(postgres.port),
        "http://storage:8333": s3_server,
        "http://prefect:4200": f"http://127.0.0.1:{ports['prefect']}",
        "http://mlflow:5000": f"http://127.0.0.1:{ports['mlflow']}",
        "--host 0.0.0.0 --port 4200": f"--port {ports['prefect']}",
        "--host 0.0.0.0 --port 5000 --workers 2": f"--port {ports['mlflow']} --workers 1",
    }
    with Factory(folder) as factory:
        stack = Stack(factory, secrets, composed(secrets, addresses), folder, postgres, ports)
        stack.home.mkdir()
        stack.make_docker()
        sql = INFRA / "kubernetes" / "postgres" / "databases.sql"
        postgres.run("psql", "-qv", "ON_ERROR_STOP=1", "-f", str(sql), **stack.environment("postgres"))
        stack.start_server("prefect", "/api/health")
        buckets = [sys.executable, *stack.services["buckets"]["command"][1:]]
        subprocess.run(buckets, env=os.environ | stack.environment("buckets"), check=True)
        stack.start_server("mlflow", "/health")
        for server in stack.running.values():
            server.service.wait()
        yield stack
