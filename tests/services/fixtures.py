"""Real services for all tests (`tests/conftest.py` loads this module). All listen on 127.0.0.1 only.

postgres         a cluster for the session: `database()` makes a fresh database; `kill()`, `stop()` and
                 `start()` keep its port and data
s3               a fresh bucket on a moto server: `url`, and the `environment` that clients need
prefect_server   starts `prefect server start`; ends it with the test
mlflow_server    starts `mlflow server`
prefect_worker   starts `prefect worker start` on a pool of such a server
services         the factory of these three, for servers that a module's tests share
"""

import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.postgres import Postgres, server_programs
from tests.services.process import Server, Service, answers, clean_environment, free_port, new_secret
from tests.services.servers import Bucket, Factory


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL cluster."""
    programs = server_programs()
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-postgres-"))
    cluster = Postgres(programs, folder)
    cluster.start()
    yield cluster
    cluster.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a moto server."""
    pytest.importorskip("moto", reason="needs moto[server] (extra `test`)")
    port, log = str(free_port()), tmp_path_factory.mktemp("s3") / "log"
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    service = Service(command, log, clean_environment(), answers(f"{address}/moto-api/"))
    service.start()
    yield address
    service.kill()


@pytest.fixture
def s3(s3_server: str) -> Bucket:
    """A fresh bucket."""
    bucket = Bucket(s3_server, f"test-{secrets.token_hex(4)}", "testing", new_secret())
    bucket.create()
    return bucket


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Factory]:
    """Starts servers and workers that stay until the module's tests are done."""
    with Factory(tmp_path_factory.mktemp("services")) as factory:
        yield factory


@pytest.fixture
def own_services(tmp_path: Path) -> Iterator[Factory]:
    """Starts servers and workers that stay until the test is done."""
    with Factory(tmp_path) as factory:
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
