"""The trainer seen from outside: its curves while it runs, its errors when it ends."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline_config.errors import EngineError, TrainingError
from pipeline_config.settings import Training
from tasks import training
from tasks.child import Rules, run_child
from tasks.training import Curves


class Points:
    """Stands where MLflow and Prefect are, and keeps what it gets."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.shown: list[tuple[int, int | None, str]] = []

    def log_points(self, record: str, points: list[tuple[int, dict[str, float]]]) -> None:
        self.logged += points

    def show(self, done: int, total: int | None, note: str = "") -> None:
        self.shown.append((done, total, note))


@pytest.fixture
def points() -> Points:
    return Points()


@pytest.fixture
def curves(tmp_path: Path, points: Points, monkeypatch: pytest.MonkeyPatch) -> Curves:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_POINTS", 0.0)
    work: Any = SimpleNamespace(
        tracking_run="run", progress=points, settings=Training(steps=10), rules=Rules()
    )
    return Curves(tmp_path / "metrics.jsonl", work, points)


def line(step: int, **values: float) -> str:
    return json.dumps({"step": step, **values}) + "\n"


def append(curves: Curves, text: str) -> None:
    with curves.path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_before_the_trainer_writes_there_are_no_points(curves: Curves, points: Points) -> None:
    curves.update()
    assert points.logged == []


def test_each_point_is_sent_once_with_its_step(curves: Curves, points: Points) -> None:
    append(curves, line(0, train_loss=3.0) + line(1, train_loss=2.0))
    curves.update()
    curves.update()
    append(curves, line(2, train_loss=1.0, tokens=96))
    curves.update()
    assert points.logged == [(0, {"train_loss": 3.0}), (1, {"train_loss": 2.0}), (2, curves.last)]
    assert curves.last == {"train_loss": 1.0, "tokens": 96}


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_a_line_that_is_not_whole_yet_waits(curves: Curves, points: Points, cut: int) -> None:
    first, second = line(0, train_loss=3.0), line(1, train_loss=2.0)
    append(curves, first + second[:cut])
    curves.update()
    assert points.logged == [(0, {"train_loss": 3.0})]
    append(curves, second[cut:])
    curves.update()
    assert points.logged == [(0, {"train_loss": 3.0}), (1, {"train_loss": 2.0})]


def test_without_a_tracking_run_progress_is_still_shown(curves: Curves, points: Points) -> None:
    curves.work.tracking_run = None
    append(curves, line(4, train_loss=3.0, tokens_per_second=4321.0))
    curves.update()
    assert (points.logged, points.shown) == ([], [(5, 10, "loss 3.000 · 4,321 tokens/s")])


def test_points_that_an_earlier_attempt_computed_are_no_progress(curves: Curves, points: Points) -> None:
    append(curves, line(4, train_loss=3.0))
    curves.update()
    assert points.shown == []


def test_points_wait_until_a_few_seconds_worth_is_there(
    curves: Curves, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_POINTS", 3600.0)
    append(curves, line(0, train_loss=3.0) + line(1, train_loss=2.0))
    curves.update()
    assert points.logged == []
    curves.send()
    curves.send()
    assert points.logged == [(0, {"train_loss": 3.0}), (1, {"train_loss": 2.0})]


def run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Lets a Python program stand for the trainer; it gets the path of the configuration."""

    def run(command: list[str], **named: Any) -> str:
        return run_child([sys.executable, "-c", code, command[-1]], **named)

    monkeypatch.setattr(training, "run_child", run)


FAIL = """
import sys, pathlib
print("last words")
if {told}:
    (pathlib.Path(sys.argv[1]).parent / "error.txt").write_text("the loss is nan at step 7")
raise SystemExit(1)
"""


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        pytest.param(True, TrainingError, r"\Athe loss is nan at step 7\Z", id="said why"),
        pytest.param(
            False, EngineError, r"the trainer ended with exit code 1[^$]*last words", id="died: it may go on"
        ),
    ],
)
def test_a_trainer_that_fails_is_an_error(
    curves: Curves, monkeypatch: pytest.MonkeyPatch, told: bool, kind: type[Exception], words: str
) -> None:
    run_instead(monkeypatch, FAIL.format(told=told))
    with pytest.raises(kind, match=words):
        training._run_trainer(Training(), curves.path.parent, curves)


def test_what_an_interrupted_attempt_left_is_not_read(
    curves: Curves, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(curves, line(0, train_loss=9.0))
    (curves.path.parent / "error.txt").write_text("of yesterday")
    run_instead(monkeypatch, FAIL.format(told=False))
    with pytest.raises(EngineError, match="last words"):
        training._run_trainer(Training(), curves.path.parent, curves)
    assert points.logged == []


def test_the_trainer_gets_its_threads_and_the_points_after_its_end_count(
    curves: Curves, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import json, os, sys, pathlib
point = {"step": 0, "threads": int(os.environ["OMP_NUM_THREADS"])}
(pathlib.Path(sys.argv[1]).parent / "metrics.jsonl").write_text(json.dumps(point) + "\\n")
"""
    run_instead(monkeypatch, code)
    training._run_trainer(Training(threads=3), curves.path.parent, curves)
    assert points.logged == [(0, {"threads": 3})]


def prepare_real_training(scratch: Path, **changed: Any) -> Training:
    """The files of a training that goes on for minutes."""
    np.resize(np.arange(12, dtype="<u2"), 4000).tofile(scratch / "text.ds")
    shards = [
        {"file": "text.ds", "split": split, "source": "text", "tokens": 4000}
        for split in ("train", "validation")
    ]
    described = {"vocabulary_size": 300, "token_bytes": 2, "shards": shards}
    (scratch / "tokens.json").write_text(json.dumps(described))
    model = {"layers": 1, "heads": 1, "width": 8, "max_context": 8}
    limits = {"steps": 100_000, "rows_per_step": 4, "threads": 1, "device": "cpu", "validation_rows": 1}
    settings = Training.model_validate({"model": model, "checkpoint_every_steps": 100_000} | limits | changed)
    config = {name: str(scratch) for name in ("tokens", "output", "scratch")} | {"weights": {}, "facts": {}}
    config |= {"training": settings.model_dump(), "tokenizer": str(scratch / "tokens.json")}
    (scratch / "config.json").write_text(json.dumps(config))
    return settings


@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_that_is_cancelled_saves_a_checkpoint_and_leaves_no_process(
    curves: Curves, monkeypatch: pytest.MonkeyPatch, processes: int, marked: Any
) -> None:
    for name, value in marked.environment.items():
        monkeypatch.setenv(name, value)
    settings = prepare_real_training(curves.path.parent, processes=processes)
    cancelled: list[float] = []

    def cancel() -> None:
        if curves.path.is_file() and curves.path.read_text().count("\n") > 5:
            cancelled.append(time.monotonic())
            raise KeyboardInterrupt

    monkeypatch.setattr(curves, "update", cancel)
    with pytest.raises(KeyboardInterrupt):
        training._run_trainer(settings, curves.path.parent, curves)
    assert time.monotonic() - cancelled[0] < 10
    assert marked.gone()
    saved = torch.load(curves.path.parent / "progress.pt", weights_only=True)["losses"]
    assert len(saved) == len(curves.path.read_text().splitlines()) > 5
