"""Runs the ranks of a pipeline as a job array of a Slurm cluster.

DataTrove's executor writes the job script and submits it; here it is watched. Jobs are known by a name that
follows from the logging folder, so that what a killed flow left in the queue is found and taken back before
its shards are given out again: two jobs never work on one shard.
"""

import contextlib
import functools
import getpass
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datatrove.executor.slurm import SlurmPipelineExecutor

from pipeline_config.environment import home
from pipeline_config.errors import EngineError, SettingsError
from pipeline_config.executors import SlurmSettings
from tasks.steps.engines.ranks import RankFailed, describe

PYTHON_PATH = "export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}"  # as `python -m` does
COMMANDS = ("sbatch", "squeue", "scancel")
CANCEL_SECONDS = 30.0
SETTLE_POLLS = 6  # looks at an empty queue before its missing shards count as lost: file systems lag behind
SILENT_SECONDS = 900.0  # a controller that restarts is away for minutes
LOG_TAIL_CHARACTERS = 3000
# Source: squeue(1), "JOB STATE CODES". What is in neither group may still run, or run again.
FAILED = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"}
ENDED = FAILED | {"COMPLETED", "NODE_FAIL", "PREEMPTED", "REVOKED"}
ADVICE = {
    "TIMEOUT": ": raise execution.executor.slurm.time_limit_minutes",
    "OUT_OF_MEMORY": ": raise execution.executor.slurm.memory_per_cpu_bytes",
}


@dataclass(frozen=True)
class Element:
    """An element of a job array: its job, its index, its state, and why it waits."""

    job: str
    index: str
    state: str
    reason: str = ""


class SlurmExecutor(SlurmPipelineExecutor):
    """DataTrove's executor for Slurm; `drive` submits all incomplete ranks and waits for their end."""

    def __init__(
        self, pipeline: list[Any], settings: SlurmSettings, *, tasks: int, workers: int, folder: Path
    ):
        options = dict(option.partition("=")[::2] for option in settings.sbatch_options)
        mebibytes = math.ceil(settings.memory_per_cpu_bytes / 2**20)
        super().__init__(
            pipeline,
            tasks=tasks,
            workers=workers,
            time=str(settings.time_limit_minutes),
            partition=settings.partition,
            qos=settings.qos,
            cpus_per_task=settings.cpus_per_task,
            job_name=job_name(folder),
            env_command=environment_command(settings),
            sbatch_args={"account": settings.account, **options, "mem-per-cpu": f"{mebibytes}M"},
            max_array_size=settings.max_array_tasks,
            tasks_per_job=settings.shards_per_task,
            job_id_retriever=functools.partial(note_job, str(folder / "jobs.txt")),
            logging_dir=str(folder),
        )
        self.settings = settings
        self.folder = folder

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        """The options of the job script; those that are left to the cluster are left out."""
        options = super().get_sbatch_args(max_array)
        return {
            name: value
            for name, value in options.items()
            if value or name not in ("account", "partition", "qos")
        }

    def launch_merge_stats(self) -> None:
        """DataTrove's statistics are not used, so no job sums them up."""

    def _run_for_rank(self, rank: int, *args: Any, **options: Any) -> Any:
        try:
            return super()._run_for_rank(rank, *args, **options)
        except Exception as error:
            path = self._cause_file(rank)
            path.parent.mkdir(exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps(describe(error)), "utf-8")
            os.replace(temporary, path)
            raise

    def _cause_file(self, rank: int) -> Path:
        return self.folder / "causes" / f"{rank:05d}.json"

    def drive(self) -> None:
        """Runs all incomplete ranks; however it is left, no job of it stays in the queue.

        Raises:
            RankFailed: a step raised something.
            EngineError: the job was refused, failed or vanished.
        """
        check_commands()
        if not self.cancel():
            raise EngineError(
                f"jobs of an earlier attempt may still be in the queue: `scancel --name={self.job_name}` did "
                "not end them, or squeue does not answer"
            )
        shutil.rmtree(self.folder / "causes", ignore_errors=True)
        (self.folder / "jobs.txt").unlink(missing_ok=True)
        try:
            self._submit()
            self._wait()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> bool:
        """Takes all jobs of this folder back; returns whether they are gone."""
        if self._is_gone():
            return True
        user = f"--user={getpass.getuser()}"
        with contextlib.suppress(OSError):
            subprocess.run(["scancel", f"--name={self.job_name}", user], check=False)
        deadline = time.monotonic() + CANCEL_SECONDS
        while not (gone := self._is_gone()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return gone

    def _is_gone(self) -> bool:
        found = queue(self.job_name)
        return found is not None and not active(found)

    def _submit(self) -> None:
        with standard_error() as said:
            try:
                self.launch_job()
            except subprocess.CalledProcessError as error:
                lines = [line for line in said() if line.startswith("sbatch:")]
                raise EngineError(
                    f"Slurm refused the job ({error}): {' '.join(lines) or 'it did not say why'}. "
                    "See the settings in execution.executor.slurm"
                ) from None

    def _wait(self) -> None:
        """Returns when every rank is complete and no job is left, so that nobody has a file open."""
        empty = 0
        answered = time.monotonic()
        shown: dict[str, int] = {}
        while True:
            self._raise_cause()
            found = queue(self.job_name)
            if found is None:
                if time.monotonic() - answered > SILENT_SECONDS:
                    raise EngineError(
                        f"squeue has not answered for {SILENT_SECONDS:.0f} s; the jobs are taken back"
                    )
            else:
                answered = time.monotonic()
                mine = [element for element in found if element.job in self._jobs()]
                shown = show(mine, shown)
                waiting = active(mine)
                empty = 0 if waiting else empty + 1
                self._raise_failure([element for element in mine if element.state in FAILED])
                if not waiting and not self.get_incomplete_ranks():
                    return
                if empty > SETTLE_POLLS:
                    raise self._vanished(mine)
            time.sleep(self.settings.poll_seconds)

    def _jobs(self) -> list[str]:
        path = self.folder / "jobs.txt"
        return path.read_text("utf-8").split() if path.exists() else []

    def _raise_cause(self) -> None:
        for path in sorted((self.folder / "causes").glob("[0-9]*.json")):
            raise RankFailed(json.loads(path.read_text("utf-8")))

    def _raise_failure(self, failed: list[Element]) -> None:
        if not failed:
            return
        time.sleep(self.settings.poll_seconds)  # the cause may take longer than the queue to be seen here
        self._raise_cause()
        first = failed[0]
        name = f"{first.job}_{first.index}"
        log = Path(self.slurm_logs_folder) / f"{name}.out"
        tail = (
            log.read_text("utf-8", "replace")[-LOG_TAIL_CHARACTERS:] if log.exists() else "(it wrote no log)"
        )
        raise EngineError(
            f"job {name} (shards {self._shards(first)}) ended as {first.state}{ADVICE.get(first.state, '')}. "
            f"Its last output:\n{tail}"
        )

    def _shards(self, element: Element) -> str:
        ranks = json.loads((self.folder / "ranks_to_run.json").read_text("utf-8"))
        position = int(element.index) + self.max_array_size * self._jobs().index(element.job)
        return ", ".join(map(str, ranks[position * self.tasks_per_job :][: self.tasks_per_job]))

    def _vanished(self, seen: list[Element]) -> EngineError:
        missing = self.get_incomplete_ranks()
        jobs = ", ".join(self._jobs())
        states = Counter(element.state for element in seen or accounting(self._jobs()))
        known = ", ".join(f"{state} {count}" for state, count in sorted(states.items()))
        return EngineError(
            f"job {jobs} has left the queue, and {len(missing)} of {self.tasks} shards are not done (the "
            f"first is {missing[0]}). Slurm's states of its tasks: {known or 'unknown'}. "
            f"Logs: {self.slurm_logs_folder}. Run the same again: it goes on with the missing shards"
        )


def check_commands() -> None:
    """Makes sure that Slurm's commands are here.

    Raises:
        SettingsError: one of them is missing.
    """
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        raise SettingsError(
            f"execution.executor.kind=slurm needs {', '.join(missing)}, not found on this machine: "
            "run the flow on a login node of the cluster, or choose another kind"
        )


def job_name(folder: Path) -> str:
    """The name of all jobs of a logging folder."""
    return f"tokenmill-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"


def environment_command(settings: SlurmSettings) -> str:
    """Shell commands that make a node's environment that of the flow."""
    python = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    commands = [
        settings.environment_command or python,
        f"export TOKENMILL_HOME={shlex.quote(str(home()))}",
        PYTHON_PATH,
    ]
    return "; ".join(commands)


def note_job(path: str, output: str) -> str:
    """The id of a job in what `sbatch` printed, which is also added to a file.

    Raises:
        EngineError: it printed something else.
    """
    found = re.search(r"\bSubmitted batch job (\d+)", output)
    if found is None:
        raise EngineError(f"sbatch printed no job id but {output!r}")
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{found.group(1)}\n")
    return found.group(1)


def queue(name: str) -> list[Element] | None:
    """All elements of the jobs of a name that Slurm still knows, or None where it does not answer."""
    whose = (f"--name={name}", f"--user={getpass.getuser()}")
    output = _ask("squeue", "--noheader", "--array", "--states=all", *whose, "--format=%F|%K|%T|%r")
    if output is None:
        return None
    lines = [line.strip().split("|", 3) for line in output.splitlines()]
    return [Element(*fields) for fields in lines if len(fields) == 4]


def accounting(jobs: list[str]) -> list[Element]:
    """The elements of jobs as Slurm's accounting has them, if there is one."""
    options = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
    output = _ask("sacct", *options, f"--jobs={','.join(jobs)}") or ""
    lines = [line.partition("|") for line in output.splitlines() if "|" in line]
    return [Element(*_halves(job), state.split()[0]) for job, _, state in lines if state.strip()]


def _halves(job: str) -> tuple[str, str]:
    number, _, index = job.partition("_")
    return number, index


def _ask(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def active(elements: list[Element]) -> list[Element]:
    """Those that run, wait, or may be started again."""
    return [element for element in elements if element.state not in ENDED]


def show(elements: list[Element], before: dict[str, int]) -> dict[str, int]:
    """Prints how many elements are in which state, where that has changed; returns it."""
    states = Counter(
        f"{element.state} ({element.reason})" if element.state == "PENDING" else element.state
        for element in elements
    )
    if states != before:
        print("slurm:", ", ".join(f"{count} {state}" for state, count in sorted(states.items())), flush=True)
    return states


@contextlib.contextmanager
def standard_error() -> Iterator[Any]:
    """Yields a function that returns the lines which this process and its children wrote to it so far."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def said() -> list[str]:
            return os.pread(file.fileno(), 1_000_000, 0).decode("utf-8", "replace").splitlines()

        try:
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            sys.stderr.write("\n".join([*said(), ""]))
