"""The process environment: one data folder, no telemetry.

Libraries read these variables when they are imported, so `flows` and `tasks` call `prepare()` first.
What the user has set already is left alone.
"""

import contextlib
import os
import shutil
from pathlib import Path

from pipeline_config.errors import StoreError

NEEDED_BYTES = 100_000_000  # databases and records of a small run, with room to spare


def home() -> Path:
    """The one folder that Tokenmill writes to: `TOKENMILL_HOME`, by default `.tokenmill` here."""
    return Path(os.environ.get("TOKENMILL_HOME") or ".tokenmill").resolve()


def prepare() -> None:
    """Switches telemetry off and keeps every library's files below `home()`."""
    folder = home()
    for name, value in {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        # The server that Prefect starts for a run without one: slow machines need more than 20 s.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "200",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.2",  # the end of every flow waits for a batch
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # seconds; see flows/automations.py
        "PREFECT_HOME": str(folder / "prefect"),
        "HF_HOME": str(folder / "cache" / "huggingface"),
        "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
        # Records wait on disk while MLflow is away: its client need not insist.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    }.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(OSError):  # check_home() says so, when something is about to be written
        folder.mkdir(parents=True, exist_ok=True)


def check_home() -> None:
    """Makes sure that `home()` can be written and has some room.

    Raises:
        StoreError: it cannot, or has not.
    """
    folder = home()
    advice = "Free some space, or set TOKENMILL_HOME to another folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise StoreError(f"data folder {folder} cannot be written: {error.strerror}. {advice}") from None
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise StoreError(
            f"the disk of data folder {folder} is full: {free / 1e6:.0f} MB free, "
            f"{NEEDED_BYTES / 1e6:.0f} MB needed. {advice}"
        )


def tracking_uri() -> str:
    """Where MLflow records: `MLFLOW_TRACKING_URI`, by default SQLite below `home()`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow' / 'mlflow.db'}"


def artifact_root() -> Path:
    """Where MLflow's artifacts lie when it records to the default SQLite file."""
    return home() / "mlflow" / "artifacts"


def mlflow_ui() -> str:
    """Address of MLflow's pages: the tracking server's, or where the command that we print serves them."""
    uri = tracking_uri()
    return uri.rstrip("/") if uri.startswith("http") else "http://127.0.0.1:5000"


def mlflow_page(experiment: str, run_id: str, part: str = "") -> str:
    """Address of a run's page; without the parameters MLflow opens its pages for agents."""
    where = f"/experiments/{experiment}/runs/{run_id}{part}?workflowType=machine_learning"
    return f"{mlflow_ui()}/?workflowType=machine_learning#{where}"


def prefect_ui() -> str:
    """Address of Prefect's pages: `PREFECT_UI_URL`, or where the command that we print serves them."""
    return (os.environ.get("PREFECT_UI_URL") or "http://127.0.0.1:4200").rstrip("/")
