"""One data folder and one Prefect server for the whole session; both are set before Prefect is imported."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background begin by ignoring it
_HOME = tempfile.mkdtemp(prefix="tokenmill-tests-")
os.environ["TOKENMILL_HOME"] = _HOME
os.environ.pop("MLFLOW_TRACKING_URI", None)
for _name in ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_PROFILE"):
    os.environ.pop(_name, None)

import pytest  # noqa: E402
import yaml  # noqa: E402

from pipeline_config.environment import prepare  # noqa: E402

prepare()

from flows import prefect_server  # noqa: E402
from tasks.steps.engines.ray_tasks import LOOPBACK_ONLY  # noqa: E402
from tests.outputs import manifests  # noqa: E402

prefect_server.start()

pytest_plugins = ["tests.services.fixtures"]
PROJECT = Path(__file__).parents[1]
SHARED_DATA = PROJECT.parent / "shared" / "data"


def pytest_sessionstart() -> None:
    prefect_server.wait()


TINY = {
    "sources": [{"name": "documentation", "kind": "installed_documentation", "dump": "TINY"}],
    "sample_crawl": {"max_text_bytes": 250_000, "warc_files": 2},
    "url_filtering": {"use_integrated_lists": False},
    "quality_filtering": {
        "gopher_repetition": None,
        "gopher_quality": {"max_non_alpha_words_ratio": 0.5},
        "c4": {"filter_curly_bracket": False},
        "fineweb": None,
    },
    "document_split": {"validation_share": 0.2},
    "bpe_training": {"vocabulary_size": 400},
    "training": {
        "model": {"layers": 1, "heads": 2, "width": 32, "max_context": 32},
        "steps": 12,
        "rows_per_step": 4,
        "threads": 1,
        "warmup_steps": 2,
        "validation_every_steps": 5,
        "checkpoint_every_steps": 4,
        "learning_rate": 0.01,
    },
    "text_generation": {"max_tokens": 8},
    "execution": {"workers": 1},
}


@pytest.fixture(scope="session")
def tiny_preset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a preset file whose main path takes half a minute."""
    path = tmp_path_factory.mktemp("presets") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False), "utf-8")
    return str(path)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_preset: str) -> SimpleNamespace:
    """One undisturbed run of the main path on the tiny preset: `home`, `outcome`, `record`, `manifests`.

    Shared by the whole session: tests may add runs to the data folder, and leave this one as it is.
    """
    from flows.train_language_model import train_language_model
    from pipeline_config.presets import load_settings
    from tasks.lineage import all_runs

    home = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_HOME", str(home))
        outcome = train_language_model(load_settings(tiny_preset))
        record = all_runs()[-1]
    return SimpleNamespace(home=home, outcome=outcome, record=record, manifests=manifests(home))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own; the session's Prefect server goes on serving."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("TOKENMILL_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Address of a Ray cluster of two nodes on this machine."""
    os.environ |= LOOPBACK_ONLY
    nodes = subprocess.Popen(
        [sys.executable, str(PROJECT / "tests" / "clusters" / "ray_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with nodes:
        address = nodes.stdout.readline().strip()
        assert address, "the Ray nodes did not start"
        yield address
        nodes.stdin.close()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a stand-in for Slurm on PATH; returns the folder that it keeps its jobs in."""
    folder, commands = tmp_path / "slurm", tmp_path / "bin"
    folder.mkdir()
    commands.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sacct", "srun", "scontrol"):
        stand_in = PROJECT / "tests" / "clusters" / "slurm.py"
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{stand_in}" {name} "$@"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(folder))
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
