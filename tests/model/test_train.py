"""The trainer: it learns, it goes on after a kill, and it says why it stops."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.architecture import GPT
from model.checkpoint import load
from model.train import learning_rate, main, make_optimizer
from pipeline_config.settings import ModelSettings, Training

TRAINING = {
    "model": {"layers": 1, "heads": 2, "width": 32, "max_context": 32},
    "steps": 12,
    "rows_per_step": 4,
    "threads": 1,
    "device": "cpu",
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "validation_every_steps": 5,
    "validation_rows": 20,
    "checkpoint_every_steps": 2,
}


def write_tokens(folder: Path, train: int = 4000, validation: int = 700) -> None:
    """A tokens folder whose text repeats itself every 12 tokens."""
    shards = []
    for split, count in (("train", train), ("validation", validation)):
        np.resize(np.arange(12, dtype="<u2") * 20, count).tofile(folder / f"{split}.ds")
        shards.append({"file": f"{split}.ds", "split": split, "source": "text", "tokens": count})
    description = {"vocabulary_size": 300, "token_bytes": 2, "shards": shards}
    (folder / "tokens.json").write_text(json.dumps(description))


def prepare(folder: Path, tokens: dict[str, int] | None = None, **changed: Any) -> Path:
    """The configuration file of a run whose files all lie in one folder."""
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    write_tokens(folder, **(tokens or {}))
    (folder / "tokenizer.json").write_bytes(b"{}")
    config = {
        "training": Training.model_validate(TRAINING | changed).model_dump(),
        "weights": {"text": 1.0},
        "tokens": str(folder),
        "tokenizer": str(folder / "tokenizer.json"),
        "output": str(folder / "output"),
        "scratch": str(folder / "scratch"),
        "facts": {"tokens_digest": "t", "tokenizer_digest": "k"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def weights(folder: Path) -> bytes:
    return (folder / "output" / "checkpoint" / "model.safetensors").read_bytes()


@pytest.fixture(autouse=True, scope="module")
def _torch_as_it_was() -> Iterator[None]:
    """The trainer sets threads and determinism for its whole process, here the tests' one."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main(str(prepare(folder))) == 0
    return folder


def test_the_loss_falls(undisturbed: Path) -> None:
    losses = lines(undisturbed / "output" / "losses.jsonl")
    assert [point["step"] for point in losses] == list(range(12))
    assert losses[0]["train_loss"] == pytest.approx(np.log(300), abs=0.1)
    assert losses[-1]["train_loss"] < losses[0]["train_loss"] - 2
    validations = {point["step"]: point["val_loss"] for point in losses if "val_loss" in point}
    assert list(validations) == [0, 5, 10, 11]
    assert validations[11] < validations[5] < validations[0]


def test_the_last_validation_loss_is_that_of_the_checkpoint(undisturbed: Path) -> None:
    model, config = load(undisturbed / "output" / "checkpoint")
    stream = torch.from_numpy(np.fromfile(undisturbed / "validation.ds", "<u2").astype(np.int64))
    rows = torch.stack([stream[start : start + 33] for start in range(0, len(stream) - 32, 32)])
    chosen = rows[np.linspace(0, len(rows) - 1, 20).astype(int)]
    with torch.no_grad():
        loss = model(chosen[:, :-1], chosen[:, 1:])[1].item()
    assert lines(undisturbed / "output" / "losses.jsonl")[-1]["val_loss"] == pytest.approx(loss, abs=1e-5)
    assert (config["tokens_digest"], config["vocabulary_size"]) == ("t", 300)


def test_the_metrics_count_tokens(undisturbed: Path) -> None:
    metrics = lines(undisturbed / "scratch" / "metrics.jsonl")
    assert [point["tokens"] for point in metrics] == [4 * 32 * (step + 1) for step in range(12)]
    assert all(point["tokens_per_second"] > 0 and point["grad_norm"] > 0 for point in metrics)


def test_the_same_run_gives_the_same_bytes_and_another_seed_others(undisturbed: Path, tmp_path: Path) -> None:
    assert main(str(prepare(tmp_path / "same"))) == 0
    assert main(str(prepare(tmp_path / "other", seed=1))) == 0
    assert weights(tmp_path / "same") == weights(undisturbed) != weights(tmp_path / "other")
    losses = [
        (folder / "output" / "losses.jsonl").read_bytes() for folder in (tmp_path / "same", undisturbed)
    ]
    assert losses[0] == losses[1]


KILLED_AT_STEP_7 = """
import os, signal, sys
from model import train

step_on = train.Trainer._step

def step(self, model, number):
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return step_on(self, model, number)

train.Trainer._step = step
train.main(sys.argv[1])
"""


def test_a_killed_run_goes_on_to_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    config = prepare(tmp_path)
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_STEP_7, str(config)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "output").exists()
    (tmp_path / "scratch" / "metrics.jsonl").unlink()
    assert main(str(config)) == 0
    assert weights(tmp_path) == weights(undisturbed)
    assert [point["step"] for point in lines(tmp_path / "scratch" / "metrics.jsonl")] == list(range(12))
    for name in ("losses.jsonl", "checkpoint/config.json"):
        assert (tmp_path / "output" / name).read_bytes() == (undisturbed / "output" / name).read_bytes()


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def undisturbed_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two processes that nothing happened to."""
    folder = tmp_path_factory.mktemp("pair")
    start_and_wait(TORCHRUN, prepare(folder, **LONG, processes=2))
    return folder


LONG = {"steps": 300, "validation_every_steps": 1000, "checkpoint_every_steps": 1000}


def start(launcher: tuple[str, ...], config: Path) -> subprocess.Popen[str]:
    """Starts the trainer as `tasks.training` does."""
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "model.train", str(config)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def start_and_wait(launcher: tuple[str, ...], config: Path) -> None:
    trainer = start(launcher, config)
    printed = trainer.communicate(timeout=120)[0]
    assert trainer.returncode == 0, printed


def stop_after_step(trainer: subprocess.Popen[str], metrics: Path, step: int) -> str:
    """Sends SIGTERM once a step is reported; returns what was printed."""
    deadline = time.monotonic() + 120
    while not metrics.is_file() or metrics.read_text().count("\n") <= step:
        assert trainer.poll() is None, trainer.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(trainer.pid, signal.SIGTERM)
    return trainer.communicate(timeout=60)[0]


def saved_steps(folder: Path) -> int:
    """How many steps a run has behind it that was stopped."""
    state = torch.load(folder / "scratch" / "progress.pt", weights_only=True)
    assert [point["step"] for point in state["losses"]] == list(range(len(state["losses"])))
    return len(state["losses"])


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [pytest.param((), 1, id="alone"), pytest.param(TORCHRUN, 2, id="two processes")],
)
def test_sigterm_saves_after_the_current_step_and_a_rerun_ends_with_the_same_bytes(
    tmp_path: Path, request: pytest.FixtureRequest, launcher: tuple[str, ...], processes: int
) -> None:
    whole = request.getfixturevalue("undisturbed_pair" if processes == 2 else "undisturbed_long")
    config, metrics = prepare(tmp_path, **LONG, processes=processes), tmp_path / "scratch" / "metrics.jsonl"
    trainer = start(launcher, config)
    said = stop_after_step(trainer, metrics, step=9)
    steps = saved_steps(tmp_path)
    assert trainer.returncode != 0
    assert f"stopped after step {steps} of 300; it is saved" in said
    assert 10 <= steps == len(lines(metrics)) < 300
    assert not (tmp_path / "output").exists()
    metrics.unlink()
    start_and_wait(launcher, config)
    assert weights(tmp_path) == weights(whole)
    losses = [(folder / "output" / "losses.jsonl").read_bytes() for folder in (tmp_path, whole)]
    assert losses[0] == losses[1]


@pytest.fixture(scope="module")
def undisturbed_long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a longer run that nothing happened to."""
    folder = tmp_path_factory.mktemp("long")
    assert main(str(prepare(folder, **LONG))) == 0
    return folder


def test_a_run_that_was_stopped_after_its_last_step_only_exports(tmp_path: Path) -> None:
    config = prepare(tmp_path)
    code = STOPPED_AT_THE_END.replace("STEP", str(TRAINING["steps"] - 1))
    assert subprocess.run([sys.executable, "-c", code, str(config)], check=False).returncode == 143
    assert saved_steps(tmp_path) == TRAINING["steps"]
    for split in ("train", "validation"):  # another text: a step more would see it
        np.full(4000, 7, dtype="<u2").tofile(tmp_path / f"{split}.ds")
    assert main(str(config)) == 0
    assert len(lines(tmp_path / "output" / "losses.jsonl")) == TRAINING["steps"]


STOPPED_AT_THE_END = """
import os, signal, sys
from model import train

step_on = train.Trainer._step

def step(self, model, number):
    if number == STEP:
        os.kill(os.getpid(), signal.SIGTERM)
    return step_on(self, model, number)

train.Trainer._step = step
train.main(sys.argv[1])
"""


def test_a_run_goes_on_from_its_checkpoint_and_not_from_the_start(tmp_path: Path) -> None:
    config = prepare(tmp_path)
    assert main(str(config)) == 0
    for split in ("train", "validation"):  # another text: only steps after the checkpoint would see it
        np.full(4000, 7, dtype="<u2").tofile(tmp_path / f"{split}.ds")
    before = weights(tmp_path)
    assert main(str(config)) == 0
    assert weights(tmp_path) == before


def test_two_processes_train_as_one(undisturbed: Path, tmp_path: Path) -> None:
    config = prepare(tmp_path, processes=2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, "-m", "model.train", str(config)], check=True, env=environment)
    alone, together = (lines(folder / "output" / "losses.jsonl") for folder in (undisturbed, tmp_path))
    assert len(together) == 12
    for one, two in zip(alone, together, strict=True):
        assert two == pytest.approx(one, abs=1e-4)
    assert len(lines(tmp_path / "scratch" / "metrics.jsonl")) == 12


@pytest.mark.parametrize(
    ("tokens", "changed", "words"),
    [
        pytest.param(
            {}, {"learning_rate": 1.0, "weight_decay": 1e30}, "the loss is (nan|inf)", id="diverged"
        ),
        pytest.param({"train": 32}, {}, "the train split has no row of 32 tokens", id="no training row"),
        pytest.param({"validation": 9}, {}, "the validation split has no row of 32", id="no validation row"),
    ],
)
def test_a_run_that_cannot_go_on_says_why_and_leaves_no_checkpoint(
    tmp_path: Path, tokens: dict[str, int], changed: dict[str, float], words: str
) -> None:
    assert main(str(prepare(tmp_path, tokens, **changed))) == 1
    message = (tmp_path / "scratch" / "error.txt").read_text()
    assert re.match(words, message)
    assert not (tmp_path / "output").exists()


def test_a_run_that_diverged_advises_a_smaller_learning_rate(tmp_path: Path) -> None:
    main(str(prepare(tmp_path, learning_rate=1.0, weight_decay=1e30)))
    message = (tmp_path / "scratch" / "error.txt").read_text()
    assert message.endswith(": try a smaller training.learning_rate")


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        pytest.param(0, 0.25, id="first step of the warm-up"),
        pytest.param(3, 1.0, id="last step of the warm-up"),
        pytest.param(4, 1.0, id="peak"),
        pytest.param(52, 0.55, id="half way"),
        pytest.param(100, 0.1, id="end"),
    ],
)
def test_the_learning_rate_warms_up_and_decays_to_a_tenth(step: int, rate: float) -> None:
    settings = Training(steps=100, warmup_steps=4, learning_rate=1.0)
    assert learning_rate(step, settings) == pytest.approx(rate)


@pytest.mark.parametrize("warmup", [pytest.param(0, id="none"), pytest.param(9, id="longer than the run")])
def test_every_step_has_a_learning_rate(warmup: int) -> None:
    settings = Training(steps=5, warmup_steps=warmup, learning_rate=1.0)
    assert all(0 < learning_rate(step, settings) <= 1 for step in range(5))


def test_only_matrices_decay() -> None:
    model = GPT(ModelSettings(layers=1, heads=1, width=8, max_context=4), 20)
    decaying, others = make_optimizer(model, Training(weight_decay=0.3)).param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert {parameter.dim() for parameter in decaying["params"]} == {2}
    assert {parameter.dim() for parameter in others["params"]} == {1}
    assert len(decaying["params"]) + len(others["params"]) == len(list(model.parameters()))
