"""Pipelines in child processes: what they say, what went wrong in them, and that none is left."""

import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger

from pipeline_config.errors import (
    EngineError,
    LedgerError,
    LimitError,
    StageError,
    StoreError,
    TokenmillError,
    UnreachableError,
)
from tasks.child import ChildFailed, Rules
from tasks.executor import WorkerLines, _cause, run_pipeline
from tasks.steps.engines.ranks import CAUSE
from tasks.steps.shards import join_parent


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
        case "network":
            raise ConnectionResetError("the peer is gone")
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
        pytest.param("network", 1, UnreachableError, r"(?s)ConnectionResetError.*peer is gone", id="network"),
        pytest.param("missing", 1, StageError, r"(?s)FileNotFoundError.*Traceback.*/nowhere/x", id="no file"),
        pytest.param("disk", 1, StoreError, "the disk is full: store /", id="full disk"),
        pytest.param("killed", 1, EngineError, r"killed by signal 9", id="killed, one worker"),
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


def test_workers_of_a_pipeline_do_not_survive_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: Any
) -> None:
    for name, value in marked.environment.items():
        monkeypatch.setenv(name, value)

    def interrupt() -> None:
        if (tmp_path / "0.txt").exists():
            raise KeyboardInterrupt

    # The environment of this process was fixed when it started, so it does not count as marked.
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(
            [Write(tmp_path), Sleep()], tasks=2, workers=2, logging_dir=tmp_path / "logs", on_poll=interrupt
        )
    assert marked.gone()


class Sleep(PipelineStep):
    """Consumes the documents, then sleeps."""

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        yield from data
        time.sleep(300)


def test_a_pipeline_that_breaks_a_rule_is_stopped_and_what_it_finished_is_kept(tmp_path: Path) -> None:
    rules = Rules(max_memory_bytes=700_000_000)
    with pytest.raises(LimitError, match="max_stage_memory_bytes=700000000"):
        run_pipeline(
            [Write(tmp_path), EatAtRankOne()],
            tasks=2,
            workers=1,
            logging_dir=tmp_path / "logs",
            rules=rules,
        )
    assert [path.name for path in (tmp_path / "logs" / "completions").iterdir()] == ["00000"]


class EatAtRankOne(PipelineStep):
    """Consumes the documents, and in the second rank a gigabyte."""

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        yield from data
        eaten = bytearray(b"x") * (1_000_000_000 * rank)
        time.sleep(300 if eaten else 0)


def logged(level: str, module: str, words: str = "words") -> str:
    return f"2026-11-30 10:00:00.123 | {level:<8} | {module}:run:12 - {words}"


INFO, WARNING, ERROR = logging.INFO, logging.WARNING, logging.ERROR


@pytest.mark.parametrize(
    ("lines", "levels"),
    [
        pytest.param([logged("INFO", "tasks.steps.packing")], [INFO], id="a step's word"),
        pytest.param([logged("ERROR", "tasks.steps.packing")], [ERROR], id="a step's error"),
        pytest.param([logged("DEBUG", "__main__")], [logging.DEBUG], id="level kept"),
        pytest.param([logged("SUCCESS", "tasks.steps.packing")], [INFO], id="loguru's own level"),
        pytest.param([logged("INFO", "datatrove.utils.logging")], [0], id="DataTrove's banner"),
        pytest.param([logged("WARNING", "datatrove.data")], [WARNING], id="DataTrove's warning"),
        pytest.param([logged("ERROR", "datatrove.executor.base")], [0], id="executor's error: raised here"),
        pytest.param([CAUSE + "{}"], [0], id="cause: raised here"),
        pytest.param(["printed"], [INFO], id="printed"),
        pytest.param([logged("ERROR", "tasks.x"), "  File"], [ERROR, ERROR], id="belongs to the line before"),
        pytest.param(
            [logged("ERROR", "datatrove.executor.base"), "Traceback", logged("INFO", "tasks.x"), "rest"],
            [0, 0, INFO, INFO],
            id="until the next line with a level",
        ),
    ],
)
def test_levels_of_what_workers_print(lines: list[str], levels: list[int]) -> None:
    level_of = WorkerLines()
    assert [level_of(line) for line in lines] == levels


class Talk(PipelineStep):
    """Says something to people."""

    def run(self, data=None, rank: int = 0, world_size: int = 1):
        logger.warning(f"a word of rank {rank}")
        yield from ()


def test_what_steps_say_arrives_and_datatroves_banners_do_not(tmp_path: Path) -> None:
    heard: list[tuple[int, str]] = []
    rules = Rules(log=lambda level, line: heard.append((level, line)))
    run_pipeline([Talk()], tasks=1, workers=1, logging_dir=tmp_path / "logs", rules=rules)
    ((level, line),) = heard
    assert level == WARNING
    assert line.endswith(" - a word of rank 0")
