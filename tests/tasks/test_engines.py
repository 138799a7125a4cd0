"""Document stages on clusters: the same ranks, the same errors, and nothing that goes on when it should not.

Ray is real: two nodes on this machine. Slurm's commands are stand-ins that run the generated job script.
"""

import ipaddress
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from pipeline_config.errors import EngineError, LedgerError, SettingsError, StageError, StoreError
from pipeline_config.executors import ExecutorSettings
from pipeline_config.settings import Execution
from tasks import engines
from tasks.child import _descendants
from tasks.engines import keep_tasks, make_executor
from tasks.executor import run_pipeline
from tasks.steps.engines.installation import SameInstallation, installation
from tasks.steps.engines.ray_tasks import RayExecutor
from tasks.steps.engines.slurm_jobs import SlurmExecutor
from tasks.steps.shards import join_parent

STOP_SECONDS = 10
LISTEN = "0A"  # Source: include/net/tcp_states.h


class Write(PipelineStep):
    """Notes its processes, does what it was told if it is rank 0, and writes a file for the rank."""

    def __init__(self, folder: Path, fault: str = ""):
        super().__init__()
        self.folder, self.fault = folder, fault

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        join_parent()
        note = self.folder / f".{rank}"
        note.write_text(f"{os.getpid()} {os.getppid()} {parent_of(os.getppid())}")
        note.rename(self.folder / f"{rank}.process")
        if self.fault == "meets":
            wait_for(lambda: len(processes(self.folder)) == 2)
        elif rank == 0:
            fail(self.fault, self.folder)
        yield Document(text=str(rank), id=str(rank))
        with (self.folder / f"{rank}.txt").open("a") as file:
            file.write(f"{rank} of {world_size}\n")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def fail(fault: str, folder: Path) -> None:
    match fault:
        case "ours":
            raise LedgerError("one record has no fate")
        case "bug":
            raise KeyError("nobody expected this")
        case "disk":
            raise OSError(28, os.strerror(28))
        case "waits":
            time.sleep(300)
        case "starter killed twice" if len(list(folder.glob("killed.*"))) < 2:
            (folder / f"killed.{os.getpid()}").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(300)


@pytest.fixture
def settings_of(request: pytest.FixtureRequest) -> Callable[[str], ExecutorSettings]:
    """Starts a cluster of a kind and returns the settings for it."""

    def start(kind: str) -> ExecutorSettings:
        if kind == "slurm":
            return slurm_settings(request.getfixturevalue("slurm"))
        return ray_settings(request.getfixturevalue("ray_cluster"))

    return start


@pytest.fixture(params=["ray", "slurm"])
def cluster(
    request: pytest.FixtureRequest, settings_of: Callable[[str], ExecutorSettings]
) -> ExecutorSettings:
    """Settings for each kind of cluster."""
    return settings_of(request.param)


def slurm_settings(_: Path, **changes: object) -> ExecutorSettings:
    return ExecutorSettings(kind="slurm", slurm={"poll_seconds": 0.2, **changes})


def ray_settings(address: str, **changes: object) -> ExecutorSettings:
    return ExecutorSettings(kind="ray", ray={"address": address, **changes})


def run(folder: Path, settings: ExecutorSettings, fault: str = "", tasks: int = 2, **options: object) -> None:
    steps = [Write(folder, fault)]
    logs = folder / "logs"
    run_pipeline(steps, tasks=tasks, workers=2, logging_dir=logs, settings=settings, **options)


def written(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def processes(folder: Path) -> list[list[str]]:
    """Of each rank that has begun: its process, its parent, and the parent's (on Ray: the node)."""
    return [path.read_text().split() for path in sorted(folder.glob("*.process"))]


def left_over(folder: Path) -> list[int]:
    """Processes of ranks that are still there after the time that stopping may take."""
    numbers = [int(words[0]) for words in processes(folder)]
    deadline = time.monotonic() + STOP_SECONDS
    while (left := [n for n in numbers if Path(f"/proc/{n}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_every_rank_that_another_engine_did_not_complete_runs_once_and_at_the_same_time(
    tmp_path: Path, cluster: ExecutorSettings
) -> None:
    (tmp_path / "logs" / "completions").mkdir(parents=True)
    (tmp_path / "logs" / "completions" / "00001").touch()
    run(tmp_path, cluster, "meets", tasks=3)
    assert written(tmp_path) == {"0.txt": "0 of 3\n", "2.txt": "2 of 3\n"}
    if cluster.kind == "ray":
        assert len({node for _, _, node in processes(tmp_path)}) == 2


@pytest.mark.parametrize(
    ("kind", "fault", "error", "words"),
    [
        pytest.param("slurm", "ours", LedgerError, r"\Aone record has no fate\Z", id="ours, by a file"),
        pytest.param("ray", "disk", StoreError, "the disk is full: store /", id="full disk, without one"),
    ],
)
def test_what_a_step_raised_on_a_node_arrives_here(
    tmp_path: Path, settings_of: Callable, kind: str, fault: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        run(tmp_path, settings_of(kind), fault, tasks=1)
    assert type(caught.value) is error


def test_cancelling_ends_the_ranks_that_run(tmp_path: Path, cluster: ExecutorSettings) -> None:
    def interrupt() -> None:
        if len(processes(tmp_path)) == 2 and (tmp_path / "1.txt").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, cluster, "waits", on_poll=interrupt)
    assert left_over(tmp_path) == []


def test_a_flow_that_is_killed_leaves_no_task_on_ray(tmp_path: Path, ray_cluster: str) -> None:
    code = (
        "import sys, pathlib, tests.tasks.test_engines as t;"
        "t.run(pathlib.Path(sys.argv[1]), t.ray_settings(sys.argv[2]), 'waits', tasks=1)"
    )
    flow = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), ray_cluster])
    wait_for(lambda: bool(processes(tmp_path)))
    flow.kill()
    flow.wait()
    assert left_over(tmp_path) == []


def test_a_ray_task_that_is_lost_is_tried_again_and_a_rerun_goes_on_where_a_stage_ended(
    tmp_path: Path, ray_cluster: str
) -> None:
    with pytest.raises(EngineError, match=r"(?s)shards 0 could not be processed .* tried 0 times more"):
        run(tmp_path, ray_settings(ray_cluster, max_retries=0), "starter killed twice")
    assert left_over(tmp_path) == []
    run(tmp_path, ray_settings(ray_cluster, max_retries=1), "starter killed twice")
    assert len(list(tmp_path.glob("killed.*"))) == 2
    assert written(tmp_path) == {"0.txt": "0 of 2\n", "1.txt": "1 of 2\n"}


def test_a_ray_task_that_fits_no_node_ends_the_stage(tmp_path: Path, ray_cluster: str) -> None:
    settings = ray_settings(ray_cluster, cpus_per_task=64, wait_for_node_seconds=1)
    with pytest.raises(EngineError, match=r"no node of the Ray cluster has 64 cores.*\(the nodes have 1 / "):
        run(tmp_path, settings)


def test_an_address_where_no_ray_cluster_is_ends_the_stage(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(EngineError, match=r"ray\.address=127\.0\.0\.1:9 cannot be used"):
        run(tmp_path, ray_settings("127.0.0.1:9"))


@pytest.mark.slow
def test_a_ray_cluster_of_our_own_listens_to_this_machine_only_and_ends_with_the_stage(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    heard: set[str] = set()

    def listen() -> None:
        if processes(tmp_path) and not heard:
            heard.update(listening_addresses(_descendants(os.getpid())))

    run(tmp_path, ray_settings("local"), tasks=1, on_poll=listen)
    assert written(tmp_path) == {"0.txt": "0 of 1\n"}
    assert heard
    assert heard <= {"127.0.0.1", "::1"}
    assert left_over(tmp_path) == []


def listening_addresses(numbers: list[int]) -> set[str]:
    """Addresses on which processes wait for TCP connections, as the kernel lists them."""
    sockets = {
        os.readlink(path)
        for number in numbers
        for path in Path(f"/proc/{number}/fd").glob("*")
        if os.path.lexists(path)
    }
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    tables = [line.split() for line in lines]
    heard = [words[1] for words in tables if words[3] == LISTEN and f"socket:[{words[9]}]" in sockets]
    return {readable(address.split(":")[0]) for address in heard}


def readable(address: str) -> str:
    """An address from its hexadecimal words, each in the order of this machine."""
    words = bytes.fromhex(address)
    parts = b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4))
    found = ipaddress.ip_address(parts)
    return str(getattr(found, "ipv4_mapped", None) or found)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("ray", r"needs the package ray: install Tokenmill with its extra `ray`", id="ray"),
        pytest.param("slurm", r"needs sbatch, squeue, scancel, not found on this machine", id="slurm"),
    ],
)
def test_an_engine_that_is_not_installed_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=words):
        run(tmp_path, ExecutorSettings(kind=kind))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("local", LocalPipelineExecutor), ("slurm", SlurmExecutor), ("ray", RayExecutor)],
)
def test_each_kind_is_an_executor_of_datatrove(
    tmp_path: Path, slurm: Path, kind: str, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: SimpleNamespace())
    settings = ExecutorSettings(kind=kind)
    executor = make_executor([Write(tmp_path)], settings, tasks=3, workers=8, folder=tmp_path / "logs")
    assert type(executor) is expected
    assert (executor.world_size, executor.workers) == (3, 3)


def test_a_started_folder_keeps_its_number_of_ranks(tmp_path: Path) -> None:
    keep_tasks(tmp_path, 3)
    keep_tasks(tmp_path, 3)
    with pytest.raises(StageError, match="begun with 3 shards and cannot go on with 2"):
        keep_tasks(tmp_path, 2)


def test_a_node_with_another_installation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check = SameInstallation()
    assert check("documents") == "documents"
    changed = installation() | {"datatrove": "0.0.1"}
    monkeypatch.setattr("tasks.steps.engines.installation.installation", lambda: changed)
    with pytest.raises(StageError, match=r"another installation than the flow \(datatrove: 0\.0\.1 instead"):
        check()


def test_the_installation_names_python_our_code_and_the_libraries() -> None:
    assert {"python", "datatrove", "pyarrow", "trafilatura", "the code of Tokenmill"} <= set(installation())


@pytest.mark.parametrize(
    ("section", "value"),
    [
        pytest.param("ray", {"address": "no port"}, id="address"),
        pytest.param("ray", {"cpus_per_task": 0}, id="no core"),
        pytest.param("slurm", {"sbatch_options": ["array=0-9"]}, id="an option that is ours"),
        pytest.param("slurm", {"sbatch_options": ["comment=a\nrm -r /"]}, id="two lines"),
        pytest.param("slurm", {"partition": "cpu gpu"}, id="two words"),
    ],
)
def test_settings_that_make_no_sense_are_refused(section: str, value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(value))):
        Execution.model_validate({"executor": {section: value}})
