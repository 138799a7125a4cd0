"""Training: torchrun in a child process, its curves to MLflow while it runs, and a checkpoint."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from pipeline_config.errors import EngineError, TrainingError
from pipeline_config.processes import bound_command
from pipeline_config.settings import Training
from tasks.child import ChildFailed, run_child
from tasks.records import Records
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.store import StageOutput, write_json

STAGE = Stage(
    "training",
    "Train model",
    version=1,
    libraries=("numpy", "safetensors", "torch"),
    artifacts=("checkpoint", "losses.jsonl"),
)
SECONDS_BETWEEN_POINTS = 2.0
GRACE_SECONDS = 6.0  # for the last checkpoint of a training that is cancelled


def train_model(run: Run, tokens: StageOutput, tokenizer: StageOutput) -> StageOutput:
    """`checkpoint/` (weights, configuration, tokenizer) and `losses.jsonl`.

    Raises:
        TrainingError: too little text for one row, or a loss that is no number.
        EngineError: the trainer died; a rerun goes on from its last checkpoint.
    """
    weights = {source.name: source.weight for source in run.settings.sources}
    return run.stage(
        STAGE,
        partial(_build, weights=weights, records=run.records),
        run.settings.training,
        label="all",
        inputs=[tokens, tokenizer],
        content=[weights],
    )


def _build(work: Work, weights: dict[str, float], records: Records) -> Report:
    tokens, tokenizer = work.inputs
    scratch = work.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    config = {
        "training": work.settings.model_dump(mode="json"),
        "weights": weights,
        "tokens": str(work.store.path(tokens)),
        "tokenizer": str(work.store.path(tokenizer) / "tokenizer" / "tokenizer.json"),
        "output": str(work.folder),
        "scratch": str(scratch),
        "facts": {"tokens_digest": tokens.digest, "tokenizer_digest": tokenizer.digest},
    }
    write_json(scratch / "config.json", config)
    curves = Curves(scratch / "metrics.jsonl", work, records)
    work.progress.unit = "steps"
    _run_trainer(work.settings, scratch, curves)
    return _report(work, config)


def _run_trainer(settings: Training, scratch: Path, curves: "Curves") -> None:
    error = scratch / "error.txt"
    for leftover in (error, curves.path):  # of an interrupted attempt
        leftover.unlink(missing_ok=True)
    processes = ("--standalone", "--nproc-per-node", str(settings.processes))
    trainer = ("-m", "model.train", str(scratch / "config.json"))
    command = bound_command("torch.distributed.run", *processes, *trainer)
    threads = {"OMP_NUM_THREADS": str(settings.threads), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        run_child(
            command,
            on_poll=curves.update,
            environment=threads,
            rules=curves.work.rules,
            grace_seconds=GRACE_SECONDS,
        )
    except ChildFailed as failure:
        if error.is_file():
            raise TrainingError(error.read_text("utf-8")) from None
        raise EngineError(f"the trainer ended with {failure}. Its last output:\n{failure.output}") from None
    finally:
        curves.send()


class Curves:
    """Follows the trainer's metrics file and passes new points on, a few seconds' worth at a time."""

    def __init__(self, path: Path, work: Work, records: Records):
        self.path = path
        self.work = work
        self.records = records
        self.position = 0
        self.points: list[tuple[int, dict[str, float]]] = []
        self.last: dict[str, float] = {}
        self.sent = time.monotonic()

    def update(self) -> None:
        """Reads the points that came since the last call."""
        if not self.path.is_file():
            return
        with self.path.open(encoding="utf-8") as file:
            file.seek(self.position)
            while (line := file.readline()).endswith("\n"):
                self.position = file.tell()
                self.last = json.loads(line)
                step = int(self.last.pop("step"))
                self.points.append((step, self.last))
                self._show(step)
        if time.monotonic() - self.sent > SECONDS_BETWEEN_POINTS:
            self.send()

    def _show(self, step: int) -> None:
        if "tokens_per_second" in self.last:
            note = f"loss {self.last['train_loss']:.3f} · {self.last['tokens_per_second']:,.0f} tokens/s"
            self.work.progress.show(step + 1, self.work.settings.steps, note)

    def send(self) -> None:
        """Records the points that were read."""
        if self.points and self.work.tracking_run:
            self.records.log_points(self.work.tracking_run, self.points)
        self.points, self.sent = [], time.monotonic()


def _report(work: Work, config: dict[str, Any]) -> Report:
    lines = (work.folder / "losses.jsonl").read_text("utf-8").splitlines()
    losses = [json.loads(line) for line in lines]
    validations = [point["val_loss"] for point in losses if "val_loss" in point]
    return {
        "measures": {
            "first_train_loss": losses[0]["train_loss"],
            "last_train_loss": losses[-1]["train_loss"],
            "first_val_loss": validations[0],
            "last_val_loss": validations[-1],
            "vocabulary_size": _vocabulary_size(Path(config["tokens"])),
            "steps": len(losses),
            "tokens": len(losses) * work.settings.rows_per_step * work.settings.model.max_context,
        }
    }


def _vocabulary_size(tokens: Path) -> int:
    return json.loads((tokens / "tokens.json").read_text("utf-8"))["vocabulary_size"]
