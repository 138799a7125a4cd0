"""Slurm: what the job script says, and what is made of the queue's answers."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline_config.environment import home
from pipeline_config.errors import EngineError
from pipeline_config.executors import SlurmSettings
from tasks.steps.engines import slurm_jobs
from tasks.steps.engines.ranks import RankFailed
from tasks.steps.engines.slurm_jobs import SlurmExecutor, job_name, note_job, queue

FAST = {"poll_seconds": 0.1}


class Job(SlurmExecutor):
    """An executor whose job script runs a shell command in place of the ranks."""

    command = "true"

    def get_launch_file_contents(self, sbatch_args: dict[str, object], run_script: str) -> str:
        return super().get_launch_file_contents(sbatch_args, self.command)


def executor(
    folder: Path, command: str = "", tasks: int = 2, workers: int = 2, **settings: object
) -> SlurmExecutor:
    made = (Job if command else SlurmExecutor)(
        [[]], SlurmSettings(**FAST | settings), tasks=tasks, workers=workers, folder=folder / "logs"
    )
    made.command = command
    return made


def complete(folder: Path) -> str:
    """A command that marks the element's rank as complete."""
    markers = shlex.quote(str(folder / "logs" / "completions"))
    return f"mkdir -p {markers}; touch {markers}/0000$((SLURM_ARRAY_TASK_ID + 2 * RUN_OFFSET))"


def script_of(slurm: Path, job: int = 1) -> str:
    return (slurm / str(job) / "script").read_text()


def options_of(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"partition": "cpu"}, {"partition": "cpu"}, id="partition"),
        pytest.param({"qos": "long", "account": "lab"}, {"qos": "long", "account": "lab"}, id="account"),
        pytest.param({"time_limit_minutes": 90}, {"time": "90"}, id="minutes"),
        pytest.param({"cpus_per_task": 4}, {"cpus-per-task": "4"}, id="cores"),
        pytest.param({"memory_per_cpu_bytes": 2_000_000_001}, {"mem-per-cpu": "1908M"}, id="memory"),
        pytest.param({"shards_per_task": 3}, {"array": "0-2%2"}, id="seven shards by three"),
        pytest.param({"max_array_tasks": 5}, {"array": "0-4%2"}, id="small arrays"),
        pytest.param(
            {"sbatch_options": ["constraint=a&b", "exclusive"]},
            {"constraint": "a&b", "exclusive": ""},
            id="options",
        ),
    ],
)
def test_the_job_script_asks_for_what_the_settings_say(
    tmp_path: Path, slurm: Path, settings: dict[str, object], expected: dict[str, str]
) -> None:
    executor(tmp_path, "true", tasks=7, **settings).launch_job()
    options = options_of(script_of(slurm))
    assert options | expected == options


def test_the_job_script_leaves_to_the_cluster_what_the_settings_leave_open(
    tmp_path: Path, slurm: Path
) -> None:
    executor(tmp_path, "true", tasks=7).launch_job()
    assert options_of(script_of(slurm)) == {
        "array": "0-6%2",
        "cpus-per-task": "1",
        "error": f"{tmp_path}/logs/slurm_logs/%A_%a.out",
        "job-name": job_name(tmp_path / "logs"),
        "mem-per-cpu": "3815M",
        "nodes": "1",
        "output": f"{tmp_path}/logs/slurm_logs/%A_%a.out",
        "requeue": "",
        "time": "1440",
    }


@pytest.mark.parametrize(
    ("command", "first"),
    [
        pytest.param("", f"export PATH={Path(sys.executable).parent}:$PATH", id="this Python"),
        pytest.param("module load python", "module load python", id="a command"),
    ],
)
def test_the_job_script_prepares_the_environment_and_runs_the_pickled_pipeline(
    tmp_path: Path, slurm: Path, command: str, first: str
) -> None:
    made = executor(tmp_path, environment_command=command)
    made.launch_job()
    made.cancel()
    lines = [line.strip() for line in script_of(slurm).splitlines()]
    assert f"{first}; export TOKENMILL_HOME={home()}; {slurm_jobs.PYTHON_PATH}" in lines
    assert lines[-1] == f"srun  -l -n 1 launch_pickled_pipeline {tmp_path}/logs/executor.pik"
    assert subprocess.run(["bash", "-n", slurm / "1" / "script"], check=False).returncode == 0


def test_no_second_job_is_sent_for_statistics(tmp_path: Path, slurm: Path) -> None:
    executor(tmp_path, complete(tmp_path)).drive()
    assert [path.name for path in slurm.iterdir()] == ["1"]


def test_more_shards_than_an_array_holds_make_several_arrays(tmp_path: Path, slurm: Path) -> None:
    executor(tmp_path, complete(tmp_path), tasks=3, max_array_tasks=2).drive()
    assert sorted(path.name for path in (tmp_path / "logs" / "completions").iterdir())[:3] == [
        "00000",
        "00001",
        "00002",
    ]
    assert (tmp_path / "logs" / "jobs.txt").read_text() == "1\n2\n"


@pytest.mark.parametrize(
    ("files", "command", "words"),
    [
        pytest.param(
            {"refuse": "invalid partition"}, "true", "refused.*sbatch: error: invalid", id="refused"
        ),
        pytest.param(
            {}, "echo the end; exit 3", r"(?s)job 1_[01] \(shards [01]\).*FAILED.*the end", id="failed"
        ),
        pytest.param({"verdict": "OUT_OF_MEMORY"}, "exit 1", "raise .*memory_per_cpu_bytes", id="memory"),
        pytest.param({"verdict": "TIMEOUT"}, "exit 1", "raise .*time_limit_minutes", id="time"),
        pytest.param(
            {"forget": ""}, "true", "job 1 has left the queue, and 2 of 2.*: COMPLETED 2", id="vanished"
        ),
        pytest.param({}, "true", "2 of 2 shards are not done", id="nothing done"),
    ],
)
def test_a_job_that_cannot_end_well_ends_the_stage(
    tmp_path: Path, slurm: Path, files: dict[str, str], command: str, words: str
) -> None:
    for name, text in files.items():
        (slurm / name).write_text(text)
    with pytest.raises(EngineError, match=words):
        executor(tmp_path, command).drive()


def test_a_queue_that_does_not_answer_is_asked_again_and_not_for_ever(
    tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(slurm_jobs, "CANCEL_SECONDS", 0.5)
    made = executor(tmp_path, "sleep 300")
    made.launch_job()
    (slurm / "silent").touch()
    with pytest.raises(EngineError, match="squeue has not answered for"):
        made._wait()
    with pytest.raises(EngineError, match="jobs of an earlier attempt may still be in the queue"):
        made.drive()
    (slurm / "silent").unlink()
    assert made.cancel()


def test_what_a_killed_flow_left_in_the_queue_is_taken_back_first(tmp_path: Path, slurm: Path) -> None:
    executor(tmp_path, "sleep 300").launch_job()
    wait_for(lambda: states(tmp_path) == {"1 RUNNING"})
    executor(tmp_path, complete(tmp_path)).drive()
    assert states(tmp_path) == {"1 CANCELLED", "2 COMPLETED"}


def test_a_cause_of_an_earlier_attempt_is_not_told_again(tmp_path: Path, slurm: Path) -> None:
    made = executor(tmp_path, complete(tmp_path))
    made._cause_file(0).parent.mkdir(parents=True)
    made._cause_file(0).write_text('{"type": "LedgerError", "message": "of yesterday"}')
    with pytest.raises(RankFailed, match="of yesterday"):
        made._wait()
    made.drive()


def states(folder: Path) -> set[str]:
    return {f"{element.job} {element.state}" for element in queue(job_name(folder / "logs"))}


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_other_folders_have_other_job_names(tmp_path: Path) -> None:
    assert job_name(tmp_path / "a") != job_name(tmp_path / "b")


def test_an_answer_of_sbatch_without_a_job_id_is_refused(tmp_path: Path) -> None:
    assert note_job(str(tmp_path / "jobs"), "Submitted batch job 12 on cluster one\n") == "12"
    with pytest.raises(EngineError, match="no job id but 'hello'"):
        note_job(str(tmp_path / "jobs"), "hello")
    assert (tmp_path / "jobs").read_text() == "12\n"


def test_no_answer_is_not_an_empty_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert queue("any") is None
