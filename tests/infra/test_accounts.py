"""Who is let in, who is not, and who could ask at all."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.process import Server, Service

LOOPBACK = re.compile(r"0100007F:|00000000000000000000000001000000:|0000000000000000FFFF00000100007F:")
NOBODY, WRONG = "", "tokenmill:wrong"
PREFECT_ACCOUNT, MLFLOW_ACCOUNT = "PREFECT_PASSWORD", "MLFLOW_PASSWORD"
EXPERIMENTS = "/api/2.0/mlflow/experiments/search?max_results=1"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
ACCESS = [
    pytest.param("prefect", "/api/health", NOBODY, 200, id="prefect_health_is_public"),
    pytest.param("prefect", "/api/ready", NOBODY, 200, id="prefect_readiness_is_public"),
    pytest.param("prefect", "/api/admin/version", NOBODY, 401, id="prefect_nobody"),
    pytest.param("prefect", "/api/admin/version", WRONG, 401, id="prefect_wrong_password"),
    pytest.param("prefect", "/api/admin/version", MLFLOW_ACCOUNT, 401, id="prefect_other_servers_account"),
    pytest.param("prefect", "/api/admin/version", PREFECT_ACCOUNT, 200, id="prefect_account"),
    pytest.param("prefect", "/api/docs", NOBODY, 401, id="prefect_nobody_reads_the_api"),
    pytest.param("mlflow", "/health", NOBODY, 200, id="mlflow_health_is_public"),
    pytest.param("mlflow", "/", NOBODY, 401, id="mlflow_nobody_sees_pages"),
    pytest.param("mlflow", EXPERIMENTS, NOBODY, 401, id="mlflow_nobody"),
    pytest.param("mlflow", EXPERIMENTS, WRONG, 401, id="mlflow_wrong_password"),
    pytest.param("mlflow", EXPERIMENTS, PREFECT_ACCOUNT, 401, id="mlflow_other_servers_account"),
    pytest.param("mlflow", EXPERIMENTS, MLFLOW_ACCOUNT, 200, id="mlflow_account"),
    pytest.param("mlflow", FILES, NOBODY, 401, id="mlflow_nobody_lists_artifacts"),
    pytest.param("mlflow", FILES, MLFLOW_ACCOUNT, 200, id="mlflow_account_lists_artifacts"),
]


@pytest.mark.parametrize(("server", "path", "who", "expected"), ACCESS)
def test_a_server_lets_in_its_account_and_nobody_else(stack, server, path, who, expected):
    credentials = f"tokenmill:{stack.secrets[who]}" if who in stack.secrets else who
    assert stack.running[server].status(path, credentials) == expected


def test_events_are_refused_to_nobody(stack):
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    address = stack.running["prefect"].address.replace("http", "ws") + "/api/events/out"
    with connect(address, subprotocols=["prefect"], proxy=None) as socket:
        socket.send('{"type": "auth", "token": "d3Jvbmc="}')
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=30)


def test_mlflow_refuses_names_that_it_does_not_know(stack):
    credentials = f"tokenmill:{stack.secrets[MLFLOW_ACCOUNT]}"
    mlflow = stack.running["mlflow"]
    assert mlflow.status(EXPERIMENTS, credentials, Host="evil.example") == 403
    assert mlflow.status(EXPERIMENTS, credentials, Host=f"mlflow:{5000}") == 200


def test_prefect_does_not_tell_its_secrets_to_those_it_lets_in(stack):
    with stack.client() as client:
        settings = client._client.get("/admin/settings").text
    assert "PREFECT" in settings or "server" in settings
    assert not [name for name, secret in stack.secrets.items() if secret in settings]


def listens_on_loopback_only(service: Service) -> bool:
    found = service.listening()
    assert found
    return all(LOOPBACK.match(address) for address in found)


def test_servers_listen_on_loopback_only_by_default(
    prefect_server: Callable[..., Server], mlflow_server: Callable[..., Server]
):
    assert listens_on_loopback_only(prefect_server().service)
    assert listens_on_loopback_only(mlflow_server().service)


def test_a_worker_listens_to_nobody_by_default(stack):
    worker = stack.start_worker("quiet", pool="quiet")
    assert worker.listening() == set()
    worker.stop()


def test_the_check_sees_who_listens_everywhere(mlflow_server: Callable[..., Server]):
    server = mlflow_server(UVICORN_HOST="0.0.0.0", MLFLOW_HOST="0.0.0.0")
    assert not listens_on_loopback_only(server.service)


def test_the_session_gave_no_secret_away(stack):
    assert not set(stack.secrets.values()) & set(os.environ.values())
    assert not [
        name for name, secret in stack.secrets.items() if secret in Path("/proc/self/cmdline").read_text()
    ]
