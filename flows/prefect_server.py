"""Prefect's own API server on SQLite, for a run that was given none.

Prefect would start one itself, but only after this process has imported everything, and would leave it
behind if this process is killed. This one starts first, and dies with the process that started it.
"""

import atexit
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from pipeline_config.environment import home
from pipeline_config.errors import TokenmillError
from pipeline_config.processes import bound_command

START_SECONDS, STOP_SECONDS, MOST_LAUNCHES = 200, 3, 4
DATABASE_URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
DATABASE_URLS = {DATABASE_URL, "PREFECT_API_DATABASE_CONNECTION_URL"}
_server: subprocess.Popen[bytes] | None = None


def start() -> None:
    """Starts the server, unless the environment names one or a Prefect profile might."""
    if {"PREFECT_API_URL", "PREFECT_PROFILE"} & os.environ.keys() or not home().is_dir():
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    _launch(port)
    atexit.register(_stop)


def _launch(port: int) -> None:
    global _server
    with _log_file().open("ab") as log:
        _server = subprocess.Popen(
            bound_command("flows.prefect_server", str(port)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def wait() -> None:
    """Waits until the server that `start` started answers.

    One that ends is started again: two servers that fill in the same fresh database can trip each other.

    Raises:
        TokenmillError: it ended again and again, or did not answer in time.
    """
    deadline, launches = time.monotonic() + START_SECONDS, 1
    while _server is not None:
        try:
            with urllib.request.urlopen(os.environ["PREFECT_API_URL"] + "/health", timeout=5):
                return
        except OSError:
            pass
        ended = _server.poll() is not None
        if ended and launches < MOST_LAUNCHES:
            launches += 1
            _launch(int(os.environ["PREFECT_API_URL"].split(":")[2].partition("/")[0]))
        elif ended or time.monotonic() > deadline:
            tail = _log_file().read_text("utf-8", "replace")[-1000:]
            raise TokenmillError(f"Prefect's server did not start. Its log {_log_file()} ends with:\n{tail}")
        time.sleep(0.05)


def _stop() -> None:
    if _server is not None:
        _server.terminate()
        try:
            _server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            _server.kill()  # SQLite survives that
            _server.wait()


def _log_file() -> Path:
    folder = Path(os.environ["PREFECT_HOME"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "server.log"


def serve(port: int) -> None:
    """Runs the server until it is told to stop or its parent dies."""
    if not DATABASE_URLS & os.environ.keys():
        create_database()
    import uvicorn
    from prefect.server.api.server import create_app

    uvicorn.run(create_app(ephemeral=True), host="127.0.0.1", port=port, log_level="error")


def create_database() -> None:
    """Makes Prefect's SQLite database in the data folder, unless it is there."""
    from tasks.databases import create_once

    create_once(Path(os.environ["PREFECT_HOME"]) / "prefect.db", _create_tables)


def _create_tables(path: Path) -> None:
    url = f"sqlite+aiosqlite:///{path}"
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
    with _log_file().open("ab") as log:
        done = subprocess.run(
            command,
            env={**os.environ, DATABASE_URL: url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    if done.returncode:
        raise TokenmillError(f"Prefect's database could not be created; the log is {_log_file()}")


if __name__ == "__main__":
    serve(int(sys.argv[1]))
