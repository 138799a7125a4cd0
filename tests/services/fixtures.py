"""Real services for all tests (`tests/conftest.py` loads this module). All listen on 127.0.0.1 only.

    postgres         a cluster for the session: `database()` makes a fresh database; `kill()`, `stop()` and
                     `start()` keep its port and data
    s3               a fresh bucket on a moto server: `url` and `environment`
    prefect_server   starts `prefect server start`
    mlflow_server    starts `mlflow server`
    prefect_worker   starts `prefect worker start` on a pool of such a server

What a factory has started ends with the test (or module) that asked; `*_session` are the session's own.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.process import Server, Service, answers, clean_environment, free_port

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
USER = "tokenmill"


def new_secret() -> str:
    """A secret to look for where it must not be."""
    return f"secret{secrets.token_hex(12)}"


@dataclass
class Database:
    """A database of its own role."""

    host: str
    port: int
    name: str
    password: str

    def url(self, driver: str) -> str:
        """Its address for SQLAlchemy, such as with the driver `postgresql+asyncpg`."""
        return f"{driver}://{self.name}:{self.password}@{self.host}:{self.port}/{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The same for libpq, which also MLflow uses with the address `postgresql+psycopg:///`."""
        return {
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGUSER": self.name,
            "PGDATABASE": self.name,
            "PGPASSWORD": self.password,
        }


class Postgres:
    """A PostgreSQL cluster, run by the user `postgres` if we are root, which it refuses."""

    def __init__(self, programs: Path, folder: Path):
        self.programs, self.folder, self.port = programs, folder, free_port()
        self.password = new_secret()
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            shutil.chown(folder, user, user)
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": folder}
        options |= {"fsync": "off", "max_connections": "200", "log_min_messages": "warning"}
        command = [str(programs / "postgres"), "-D", str(folder / "data")]
        self.service = Service(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            folder / "log",
            clean_environment(),
            lambda _: self._is_ready(),
            signal.SIGINT,
            folder,
            user,
        )
        self._make(user)

    def _make(self, user: str | None) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        password.chmod(0o644)
        command = [str(self.programs / "initdb"), "--no-sync", "--auth=scram-sha-256", "--username=postgres"]
        command += [f"--pwfile={password}", "--encoding=UTF8", "--locale=C", str(self.folder / "data")]
        (self.folder / "log").touch()
        done = subprocess.run(
            command, user=user, group=user, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        password.unlink()

    def start(self) -> None:
        """Starts it, after `stop` or `kill`, too."""
        self.service.start()

    def stop(self) -> None:
        """A shutdown that ends all connections."""
        self.service.stop()

    def kill(self) -> None:
        """Ends it as a power cut would."""
        self.service.kill()

    @property
    def environment(self) -> dict[str, str]:
        """The administrator's, for PostgreSQL's programs."""
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": "postgres",
            "PGPASSWORD": self.password,
        }

    def run(self, *command: str, **environment: str) -> str:
        """What one of PostgreSQL's programs prints."""
        done = subprocess.run(
            command,
            env=clean_environment(**self.environment, **environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def database(self) -> Database:
        """A fresh database."""
        made = Database("127.0.0.1", self.port, f"test_{secrets.token_hex(4)}", new_secret())
        self.run("psql", "-qc", f"CREATE ROLE {made.name} LOGIN PASSWORD '{made.password}'")
        self.run("createdb", "--owner", made.name, made.name)
        return made

    def _is_ready(self) -> bool:
        command = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0


def _programs() -> Path:
    """The folder of PostgreSQL's server programs, the newest version's."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = shutil.which("postgres")
    if not found and not places:
        pytest.skip("needs PostgreSQL's server (Debian: apt-get install postgresql)")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("needs a user `postgres`: PostgreSQL refuses to be run by root")
    return places[-1] if places else Path(str(found)).parent


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL cluster."""
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-postgres-"))
    folder.chmod(0o755)
    cluster = Postgres(_programs(), folder)
    cluster.start()
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)


@dataclass
class Bucket:
    """A bucket, and the environment in which boto3, s3fs and pyarrow find it."""

    url: str
    environment: dict[str, str]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a moto server."""
    pytest.importorskip("moto", reason="needs moto[server] and boto3 (extra `test`)")
    address, log = f"http://127.0.0.1:{free_port()}", tmp_path_factory.mktemp("s3") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.rpartition(":")[2]]
    service = Service(command, log, clean_environment(), answers(f"{address}/moto-api/"))
    service.start()
    yield address
    service.kill()


@pytest.fixture
def s3(s3_server: str) -> Bucket:
    """A fresh bucket."""
    return new_bucket(s3_server)


def new_bucket(address: str) -> Bucket:
    """A fresh bucket on an S3 server."""
    import boto3

    name, credentials = f"test-{secrets.token_hex(4)}", ("testing", new_secret())
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id=credentials[0],
        aws_secret_access_key=credentials[1],
    )
    client.create_bucket(Bucket=name)
    client.close()
    environment = {
        "AWS_ENDPOINT_URL": address,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": credentials[0],
        "AWS_SECRET_ACCESS_KEY": credentials[1],
    }
    return Bucket(f"s3://{name}", environment)


class Factory:
    """Starts services in a folder, and stops them all together."""

    def __init__(self, folder: Path):
        self.folder, self.services = folder, contextlib.ExitStack()

    def start(self, command: list[str], ready: Callable[[Service], bool], **environment: str) -> Service:
        """Starts one: `command` is a module and its arguments."""
        own = Path(tempfile.mkdtemp(dir=self.folder))
        environment = clean_environment(**QUIET, **{"PREFECT_HOME": str(own / "prefect")} | environment)
        service = Service([sys.executable, "-m", *command], own / "log", environment, ready, folder=own)
        self.services.callback(service.stop)
        service.start()
        return service

    def prefect_server(self, database: Database | None = None, password: str = "", **more: str) -> Server:
        """A Prefect server, on SQLite or a database; with a password it wants to be told `tokenmill:...`."""
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
        service = self.start(command, answers(f"{address}/api/health"), **environment)
        return Server(service, address, client)

    def mlflow_server(
        self,
        database: Database | None = None,
        password: str = "",
        artifacts: Bucket | None = None,
        **more: str,
    ) -> Server:
        """An MLflow server, on SQLite or a database, files or a bucket, for all or the user `tokenmill`."""
        port = str(free_port())
        address = f"http://127.0.0.1:{port}"
        environment, client = dict(more), {"MLFLOW_TRACKING_URI": address}
        command = ["mlflow", "server", "--port", port, "--workers", "1"]
        command += ["--backend-store-uri", "postgresql+psycopg:///" if database else "sqlite:///mlflow.db"]
        command += ["--artifacts-destination", artifacts.url if artifacts else "artifacts"]
        environment |= (database.environment if database else {}) | (
            artifacts.environment if artifacts else {}
        )
        if password:
            assert database, "infra/mlflow_auth.ini keeps the accounts in PostgreSQL"
            command += ["--app-name", "basic-auth"]
            environment["MLFLOW_AUTH_CONFIG_PATH"] = str(Path("infra/mlflow_auth.ini").resolve())
            environment["MLFLOW_AUTH_ADMIN_PASSWORD"] = password
            environment["MLFLOW_FLASK_SERVER_SECRET_KEY"] = new_secret()
            client |= {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": password}
        service = self.start(command, answers(f"{address}/health"), **environment)
        return Server(service, address, client)

    def prefect_worker(self, server: Server, pool: str, name: str, **more: str) -> Service:
        """A process worker; it makes the pool if there is none."""
        command = ["prefect", "worker", "start", "--pool", pool, "--type", "process", "--name", name]
        environment = server.environment | {"PREFECT_WORKER_QUERY_SECONDS": "1"} | more
        return self.start(command, lambda service: "started!" in service.text(), **environment)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Factory]:
    """Starts servers and workers that stay until the module's tests are done."""
    factory = Factory(tmp_path_factory.mktemp("services"))
    with factory.services:
        yield factory


@pytest.fixture
def own_services(tmp_path: Path) -> Iterator[Factory]:
    """Starts servers and workers that stay until the test is done."""
    factory = Factory(tmp_path)
    with factory.services:
        yield factory


@pytest.fixture
def prefect_server(own_services: Factory) -> Callable[..., Server]:
    """Starts a Prefect server."""
    return own_services.prefect_server


@pytest.fixture
def mlflow_server(own_services: Factory) -> Callable[..., Server]:
    """Starts an MLflow server."""
    return own_services.mlflow_server


@pytest.fixture
def prefect_worker(own_services: Factory) -> Callable[..., Service]:
    """Starts a process worker."""
    return own_services.prefect_worker
