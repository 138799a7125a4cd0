"""One data folder and one Prefect server for the whole session; both are set before Prefect is imported."""

import os
import sys
import tempfile
from pathlib import Path

_HOME = tempfile.mkdtemp(prefix="tokenmill-tests-")
os.environ["TOKENMILL_HOME"] = _HOME
os.environ.pop("MLFLOW_TRACKING_URI", None)
for _name in ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_PROFILE"):
    os.environ.pop(_name, None)

import pytest  # noqa: E402

from pipeline_config.environment import prepare  # noqa: E402

prepare()

from flows import prefect_server  # noqa: E402

prefect_server.start()

PROJECT = Path(__file__).parents[1]
SHARED_DATA = PROJECT.parent / "shared" / "data"


def pytest_sessionstart() -> None:
    prefect_server.wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own; the session's Prefect server goes on serving."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("TOKENMILL_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The shared test data beside the project; tests that need it are skipped where it is absent."""
    if not (SHARED_DATA / "crawl").is_dir():
        pytest.skip(f"needs the shared test data in {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter that runs the tests."""
    return sys.executable
