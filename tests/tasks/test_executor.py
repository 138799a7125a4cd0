"""Child processes: what they say when they fail, and that none is left."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline_config.errors import LedgerError, StageError, StoreError, TokenmillError
from tasks.executor import ChildFailed, _cause, run_child, run_pipeline
from tasks.steps.ranks import CAUSE
from tasks.steps.shards import join_parent

MARK = "TOKENMILL_TEST_MARK"


class Write(PipelineStep):
    """Writes a file for the rank, after doing what it was told for rank 0."""

    def __init__(self, folder: Path, fault: str = ""):
        super().__init__()
        self.folder, self.fault = folder, fault

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        join_parent()
        if rank == 0:
            fail(self.fault)
        yield Document(text=str(rank), id=str(rank))
        with (self.folder / f"{rank}.txt").open("a") as file:
            file.write(f"{rank} of {world_size}\n")


def fail(fault: str) -> None:
    match fault:
        case "ours":
            raise LedgerError("one record has no fate")
        case "bug":
            raise KeyError("nobody expected this")
        case "disk":
            raise OSError(28, os.strerror(28))
        case "missing":
            raise FileNotFoundError(2, "No such file or directory", "/nowhere/x.parquet")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, fault: str = "", workers: int = 1, tasks: int = 2) -> None:
    run_pipeline([Write(folder, fault)], tasks=tasks, workers=workers, logging_dir=folder / "logs")


def written(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def test_two_workers_run_every_rank_once(tmp_path: Path) -> None:
    run(tmp_path, workers=2, tasks=3)
    assert written(tmp_path) == {f"{rank}.txt": f"{rank} of 3\n" for rank in range(3)}


def test_one_worker_runs_the_ranks_that_an_interrupted_attempt_did_not_complete(tmp_path: Path) -> None:
    (tmp_path / "logs" / "completions").mkdir(parents=True)
    (tmp_path / "logs" / "completions" / "00001").touch()
    run(tmp_path, tasks=3)
    assert written(tmp_path) == {"0.txt": "0 of 3\n", "2.txt": "2 of 3\n"}


@pytest.mark.parametrize(
    ("fault", "workers", "error", "words"),
    [
        pytest.param("ours", 2, LedgerError, r"\Aone record has no fate\Z", id="ours, two workers"),
        pytest.param("bug", 1, StageError, r"(?s)KeyError.*Traceback.*nobody expected", id="bug"),
        pytest.param("missing", 1, StageError, r"(?s)FileNotFoundError.*Traceback.*/nowhere/x", id="no file"),
        pytest.param("disk", 1, StoreError, "the disk is full: store /", id="full disk"),
        pytest.param("killed", 1, StageError, r"killed by signal 9", id="killed, one worker"),
    ],
)
def test_what_went_wrong_in_a_worker_arrives_here(
    tmp_path: Path, fault: str, workers: int, error: type[TokenmillError], words: str
) -> None:
    with pytest.raises(TokenmillError, match=words) as caught:
        run(tmp_path, fault, workers)
    assert type(caught.value) is error


def test_a_killed_worker_among_several_does_not_hang_the_run(tmp_path: Path) -> None:
    deadline = time.monotonic() + 60

    def give_up() -> None:
        if time.monotonic() > deadline:
            pytest.fail("the run hangs: it waits for a worker that was killed")

    with pytest.raises(StageError, match="worker"):
        run_pipeline(
            [Write(tmp_path, "killed")], tasks=2, workers=2, logging_dir=tmp_path / "logs", on_poll=give_up
        )


def test_the_cause_is_found_though_other_workers_go_on_talking() -> None:
    cause = json.dumps({"type": "LedgerError", "message": "one record has no fate"})
    raised = _cause(ChildFailed(1, f"before\n{CAUSE}{cause}\n2026 | SUCCESS | done for rank=1\n"))
    assert (type(raised), str(raised)) == (LedgerError, "one record has no fate")


def test_the_cause_of_an_earlier_attempt_is_not_told_again(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    earlier = {"type": "LedgerError", "message": "of yesterday"}
    (tmp_path / "logs" / "executor.error").write_text(json.dumps(earlier))
    with pytest.raises(StageError, match="killed by signal 9"):
        run(tmp_path, "killed")


def test_a_child_gives_back_what_it_printed() -> None:
    code = f"import os, sys; print(os.environ['{MARK}']); print('err', file=sys.stderr)"
    printed = run_child([sys.executable, "-u", "-c", code], environment={MARK: "set"})
    assert printed.split() == ["set", "err"]


def test_a_child_that_fails_leaves_its_exit_code_and_the_end_of_its_output() -> None:
    code = "print('x' * 10000); print('the end'); raise SystemExit(3)"
    with pytest.raises(ChildFailed, match="exit code 3") as caught:
        run_child([sys.executable, "-c", code])
    assert caught.value.returncode == 3
    assert caught.value.output.endswith("the end\n")
    assert len(caught.value.output) == 10_000 + len("\nthe end\n")


def test_the_caller_is_asked_while_the_child_runs_and_once_after() -> None:
    polled: list[float] = []
    run_child([sys.executable, "-c", "import time; time.sleep(0.5)"], on_poll=lambda: polled.append(0))
    assert 4 <= len(polled) <= 40


def marked(mark: str) -> dict[int, str]:
    """Command lines of the living processes that started with a mark in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


TREE = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])
open(sys.argv[1], 'w').close()
time.sleep(300)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
SLEEPER = "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(300)\n"


@pytest.mark.parametrize(
    ("launcher", "code"),
    [pytest.param((), TREE, id="tree"), pytest.param(TORCHRUN, SLEEPER, id="torchrun")],
)
def test_no_descendant_survives_an_exception(tmp_path: Path, launcher: tuple[str, ...], code: str) -> None:
    (tmp_path / "code.py").write_text(code)
    mark, started = f"{os.getpid()}-{tmp_path.name}", tmp_path / "started"

    def interrupt() -> None:
        if started.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child(
            [sys.executable, *launcher, str(tmp_path / "code.py"), str(started)],
            on_poll=interrupt,
            environment={MARK: mark},
        )
    assert gone(mark)


def gone(mark: str) -> bool:
    """Whether no marked process is left; kills those that are, so that nothing outlives the tests."""
    deadline = time.monotonic() + 5
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for number, command in left.items():
        print("still running:", command)
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return not left


def test_workers_of_a_pipeline_do_not_survive_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv(MARK, mark)

    def interrupt() -> None:
        if (tmp_path / "0.txt").exists():
            raise KeyboardInterrupt

    # The environment of this process was fixed when it started, so it does not count as marked.
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(
            [Write(tmp_path), Sleep()], tasks=2, workers=2, logging_dir=tmp_path / "logs", on_poll=interrupt
        )
    assert gone(mark)


class Sleep(PipelineStep):
    """Consumes the documents, then sleeps."""

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        yield from data
        time.sleep(300)


def test_threads_may_run_children_at_the_same_time(tmp_path: Path) -> None:
    printed: dict[int, str] = {}

    def work(number: int) -> None:
        printed[number] = run_child([sys.executable, "-c", f"print({number})"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printed == {number: f"{number}\n" for number in range(3)}
