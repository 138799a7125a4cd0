"""Prefect's own API server on SQLite, for a run that was given none.

Prefect would start one itself, but only after this process has imported everything, and would leave it
behind if this process is killed. This one starts first, and dies with the process that started it.
"""

import asyncio
import atexit
import fcntl
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from pipeline_config.environment import home
from pipeline_config.errors import TokenmillError

START_SECONDS = 200
_server: subprocess.Popen[bytes] | None = None


def start() -> None:
    """Starts the server, unless the environment names one or a Prefect profile might."""
    global _server
    if {"PREFECT_API_URL", "PREFECT_PROFILE"} & os.environ.keys() or not home().is_dir():
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = _log_file().open("ab")
    _server = subprocess.Popen(
        [sys.executable, "-m", "flows.prefect_server", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    atexit.register(_stop)
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"


def wait() -> None:
    """Waits until the server that `start` started answers.

    Raises:
        TokenmillError: it ended, or did not answer in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while _server is not None:
        try:
            with urllib.request.urlopen(os.environ["PREFECT_API_URL"] + "/health", timeout=5):
                return
        except OSError:
            pass
        if _server.poll() is not None or time.monotonic() > deadline:
            raise TokenmillError(f"Prefect's server did not start; its log is {_log_file()}")
        time.sleep(0.05)


def _stop() -> None:
    if _server is not None:
        _server.terminate()
        try:
            _server.wait(5)
        except subprocess.TimeoutExpired:
            _server.kill()


def _log_file() -> Path:
    folder = Path(os.environ["PREFECT_HOME"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "server.log"


def serve(port: int) -> None:
    """Runs the server until it is told to stop or its parent dies."""
    from tasks.steps.processes import die_with_parent

    die_with_parent()
    import uvicorn
    from prefect.server.api.server import create_app

    _create_database()
    uvicorn.run(create_app(ephemeral=True), host="127.0.0.1", port=port, log_level="error")


def _create_database() -> None:
    """Creates the tables once: two servers that do it at the same time break each other."""
    from prefect.server.database import provide_database_interface

    folder = Path(os.environ["PREFECT_HOME"])
    done = folder / ".database_created"
    with (folder / ".database.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            asyncio.run(provide_database_interface().create_db())
            done.touch()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
