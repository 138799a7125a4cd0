"""Prefect's and MLflow's servers and workers, started as a user starts them, and the bucket they may use."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.postgres import Database
from tests.services.process import Server, Service, answers, clean_environment, free_port, new_secret

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
USER = "tokenmill"
ACCOUNTS = Path(__file__).parents[2] / "infra" / "mlflow_auth.ini"


@dataclass
class Bucket:
    """A bucket on an S3 server."""

    address: str
    name: str
    key_id: str
    secret_key: str

    @property
    def url(self) -> str:
        """Its address for fsspec."""
        return f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """In which boto3, s3fs and pyarrow find it."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """A client of boto3."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.address,
            region_name="us-east-1",
            aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret_key,
        )
        with contextlib.closing(client):
            yield client

    def create(self) -> None:
        """Makes it."""
        with self.client() as client:
            client.create_bucket(Bucket=self.name)

    def names(self) -> list[str]:
        """What is in it."""
        with self.client() as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
            return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def is_polling(worker: Service) -> bool:
    """Whether a worker takes runs yet."""
    return "started!" in worker.text()


class Factory(contextlib.ExitStack):
    """Starts services in a folder, and stops them all together."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    def start(
        self,
        command: list[str],
        ready: Callable[[Service], bool],
        environment: dict[str, str],
        wait: bool = True,
    ) -> Service:
        """Starts one in a folder of its own.

        Args:
            command: a module and its arguments.
        """
        own = Path(tempfile.mkdtemp(dir=self.folder))
        environment = clean_environment(**QUIET | {"PREFECT_HOME": str(own / "prefect")} | environment)
        service = Service([sys.executable, "-m", *command], own / "log", environment, ready, folder=own)
        self.callback(service.stop)
        service.start(wait)
        return service

    def prefect_server(
        self, database: Database | None = None, password: str = "", wait: bool = True, **more: str
    ) -> Server:
        """A Prefect server on SQLite or a database, for all or for `tokenmill:<password>`."""
        port = str(free_port())
        address = f"http://127.0.0.1:{port}"
        environment = {"PREFECT_SERVER_API_PORT": port, "PREFECT_SERVER_UI_API_URL": "/api"} | more
        client = {"PREFECT_API_URL": f"{address}/api"}
        if database:
            environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database.url("postgresql+asyncpg")
        if password:
            environment["PREFECT_SERVER_API_AUTH_STRING"] = f"{USER}:{password}"
            client["PREFECT_API_AUTH_STRING"] = f"{USER}:{password}"
        command = ["prefect", "server", "start", "--port", port]
        service = self.start(command, answers(f"{address}/api/health"), environment, wait)
        return Server(service, address, client)

    def mlflow_server(
        self,
        database: Database | None = None,
        password: str = "",
        artifacts: Bucket | None = None,
        wait: bool = True,
        **more: str,
    ) -> Server:
        """An MLflow server on SQLite or a database, files or a bucket, for all or the user `tokenmill`.

        Accounts need a database.
        """
        port = str(free_port())
        address = f"http://127.0.0.1:{port}"
        environment, client = dict(more), {"MLFLOW_TRACKING_URI": address}
        command = ["mlflow", "server", "--port", port, "--workers", "1"]
        command += ["--backend-store-uri", "postgresql+psycopg:///" if database else "sqlite:///mlflow.db"]
        command += ["--artifacts-destination", artifacts.url if artifacts else "artifacts"]
        for part in filter(None, (database, artifacts)):
            environment |= part.environment
        if password:
            command += ["--app-name", "basic-auth"]
            environment["MLFLOW_AUTH_CONFIG_PATH"] = str(ACCOUNTS)
            environment["MLFLOW_AUTH_ADMIN_PASSWORD"] = password
            environment["MLFLOW_FLASK_SERVER_SECRET_KEY"] = new_secret()
            client |= {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": password}
        service = self.start(command, answers(f"{address}/health"), environment, wait)
        return Server(service, address, client)

    def prefect_worker(self, server: Server, pool: str, name: str, wait: bool = True, **more: str) -> Service:
        """A process worker; it makes the pool if there is none."""
        command = ["prefect", "worker", "start", "--pool", pool, "--type", "process", "--name", name]
        environment = server.environment | {"PREFECT_WORKER_QUERY_SECONDS": "1"} | more
        return self.start(command, is_polling, environment, wait)
