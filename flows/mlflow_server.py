"""MLflow's server in one process that dies with the one that started it.

`mlflow server` would start further processes and leave them behind if it is killed. Reads the variables that
MLflow reads: `MLFLOW_BACKEND_STORE_URI` and `MLFLOW_ARTIFACTS_DESTINATION` (default: SQLite and a folder in
the data folder), `MLFLOW_FLASK_SERVER_SECRET_KEY`. With `MLFLOW_TRACKING_USERNAME` and
`MLFLOW_TRACKING_PASSWORD` set, it asks for these (package `mlflow[auth]`).
"""

import os
import secrets
import sys
from pathlib import Path

from pipeline_config.environment import artifact_root, home

HOST = "127.0.0.1"


def prepare_environment() -> bool:
    """Sets what MLflow reads when its server is imported; whether it is to ask who calls."""
    from mlflow.environment_variables import _MLFLOW_SGI_NAME
    from mlflow.server import (
        ARTIFACT_ROOT_ENV_VAR,
        ARTIFACTS_DESTINATION_ENV_VAR,
        BACKEND_STORE_URI_ENV_VAR,
        SERVE_ARTIFACTS_ENV_VAR,
    )

    destination = os.environ.get("MLFLOW_ARTIFACTS_DESTINATION") or str(artifact_root())
    os.environ |= {
        BACKEND_STORE_URI_ENV_VAR: os.environ.get("MLFLOW_BACKEND_STORE_URI") or _default_database(),
        ARTIFACTS_DESTINATION_ENV_VAR: destination,
        ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        SERVE_ARTIFACTS_ENV_VAR: "true",
        _MLFLOW_SGI_NAME.name: "uvicorn",
    }
    protected = bool(os.environ.get("MLFLOW_TRACKING_USERNAME"))
    if protected:
        _configure_authentication()
    return protected


def _default_database() -> str:
    from tasks.databases import create_once
    from tasks.provenance import create_tables

    path = home() / "mlflow" / "mlflow.db"
    create_once(path, create_tables)
    return f"sqlite:///{path}"


def _configure_authentication() -> None:
    """Lets the user that the clients' variables name be the administrator."""
    folder = home() / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    if "MLFLOW_AUTH_CONFIG_PATH" not in os.environ:
        path = folder / "authentication.ini"
        path.write_text(
            "[mlflow]\ndefault_permission = NO_PERMISSIONS\n"
            f"database_uri = sqlite:///{folder / 'users.db'}\n"
            f"admin_username = {os.environ['MLFLOW_TRACKING_USERNAME']}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
            "auth_cache_ttl_seconds = 60\n",  # checking a password takes a third of a second
            "utf-8",
        )
        os.environ["MLFLOW_AUTH_CONFIG_PATH"] = str(path)
    os.environ.setdefault("MLFLOW_AUTH_ADMIN_PASSWORD", os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    os.environ.setdefault("MLFLOW_FLASK_SERVER_SECRET_KEY", _secret_key(folder / "secret-key"))


def _secret_key(path: Path) -> str:
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), "ascii")
    return path.read_text("ascii")


def serve(port: int) -> None:
    """Runs the server until it is told to stop or its parent dies."""
    protected = prepare_environment()
    import uvicorn

    if protected:
        from mlflow.server.auth import bootstrap_admin_user, create_app

        bootstrap_admin_user()
        app = create_app()
    else:
        from mlflow.server.fastapi_app import app
    uvicorn.run(app, host=HOST, port=port, log_level="warning")


if __name__ == "__main__":
    serve(int(sys.argv[1]))
