"""The document stages on clusters: the same bytes as on this machine, and a stopped flow stops them too."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.prepare_tokens import prepare_tokens
from pipeline_config.settings import Settings
from tasks.store import MANIFEST

pytestmark = pytest.mark.slow
STAGES = (
    "sample_crawl",
    "url_filtering",
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    "document_split",
    "bpe_training",
    "packing",
)
STOP_SECONDS = 10


@pytest.fixture(params=["ray", "slurm"])
def cluster(request: pytest.FixtureRequest) -> list[str]:
    """Overrides that send a run's document stages to a cluster."""
    here = "execution.executor"
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return [f"{here}.kind=ray", f"{here}.ray.address={request.getfixturevalue('ray_cluster')}"]
    request.getfixturevalue("slurm")
    return [f"{here}.kind=slurm", f"{here}.slurm.poll_seconds=0.2"]


def manifests(home: Path) -> dict[str, bytes]:
    """Recipe, files and their SHA-256 of every output of the document stages."""
    return {
        f"{stage}/{path.parent.name}": path.read_bytes()
        for stage in STAGES
        for path in (home / "store" / stage).glob(f"*/{MANIFEST}")
    }


def test_a_cluster_gives_the_same_keys_and_bytes_as_this_machine(
    tiny_run: SimpleNamespace, tiny: Callable[..., Settings], home: Path, cluster: list[str]
):
    prepare_tokens(tiny("execution.workers=2", *cluster))
    found = manifests(home)
    assert {name.split("/")[0] for name in found} == set(STAGES)
    assert found == manifests(tiny_run.home)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_flow_that_is_stopped_leaves_no_task_on_the_cluster(
    command: Callable[..., subprocess.Popen[str]], ray_cluster: str, tmp_path: Path, how: signal.Signals
):
    home = tmp_path / "home"
    overrides = ["execution.executor.kind=ray", f"execution.executor.ray.address={ray_cluster}"]
    process = command(home, *overrides)
    wait_for(lambda: tasks_of(home), seconds=100)
    os.kill(process.pid, how)
    process.communicate(timeout=STOP_SECONDS)
    wait_for(lambda: not tasks_of(home), seconds=STOP_SECONDS)


def tasks_of(home: Path) -> list[int]:
    """Processes that run ranks for a data folder, on any node."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"tasks.steps.run_executor" in words and words[-2].isdigit():
                found += [int(folder.name)] * (os.fsencode(home) in (folder / "environ").read_bytes())
    return found


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)
