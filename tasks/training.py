"""Training: torchrun in a child process, its curves to MLflow while it runs, and a checkpoint."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.logging import get_run_logger

from pipeline_config.errors import TrainingError
from pipeline_config.processes import bound_command
from pipeline_config.settings import Training
from tasks.executor import ChildFailed, run_child
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.store import StageOutput, write_json

if TYPE_CHECKING:
    from tasks.provenance import Provenance

STAGE = Stage(
    "training",
    "Train model",
    version=1,
    libraries=("numpy", "safetensors", "torch"),
    artifacts=("checkpoint", "losses.jsonl"),
)


def train_model(run: Run, tokens: StageOutput, tokenizer: StageOutput) -> StageOutput:
    """`checkpoint/` (weights, configuration, tokenizer) and `losses.jsonl`.

    Raises:
        TrainingError: too little text for one row, a loss that is no number, or a trainer that died.
    """
    weights = {source.name: source.weight for source in run.settings.sources}
    return run.stage(
        STAGE,
        partial(_build, weights=weights, provenance=run.provenance),
        run.settings.training,
        label="all",
        inputs=[tokens, tokenizer],
        content=[weights],
    )


def _build(work: Work, weights: dict[str, float], provenance: "Provenance") -> Report:
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
    curves = Curves(scratch / "metrics.jsonl", work, provenance)
    _run_trainer(work.settings, scratch, curves)
    return _report(work, config, curves)


def _run_trainer(settings: Training, scratch: Path, curves: "Curves") -> None:
    error = scratch / "error.txt"
    for leftover in (error, curves.path):  # of an interrupted attempt
        leftover.unlink(missing_ok=True)
    processes = ("--standalone", "--nproc-per-node", str(settings.processes))
    trainer = ("-m", "model.train", str(scratch / "config.json"))
    command = bound_command("torch.distributed.run", *processes, *trainer)
    threads = {"OMP_NUM_THREADS": str(settings.threads), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        run_child(command, on_poll=curves.update, environment=threads)
    except ChildFailed as failure:
        if error.is_file():
            raise TrainingError(error.read_text("utf-8")) from None
        raise TrainingError(f"the trainer ended with {failure}. Its last output:\n{failure.output}") from None


class Curves:
    """Follows the trainer's metrics file and passes new points on."""

    def __init__(self, path: Path, work: Work, provenance: "Provenance"):
        self.path = path
        self.work = work
        self.provenance = provenance
        self.position = 0
        self.last: dict[str, float] = {}

    def update(self) -> None:
        """Sends the points that came since the last call."""
        if not self.path.is_file():
            return
        with self.path.open(encoding="utf-8") as file:
            file.seek(self.position)
            while (line := file.readline()).endswith("\n"):
                self.position = file.tell()
                self._send(json.loads(line))

    def _send(self, point: dict[str, float]) -> None:
        step = int(point.pop("step"))
        self.last = point
        if self.work.tracking_run:
            try:
                self.provenance.log_metrics(self.work.tracking_run, point, step)
            except Exception as error:  # a tracker that is away must not end the training
                get_run_logger().warning("step %d was not recorded in MLflow: %r", step, error)
        self.work.progress.show(100.0 * (step + 1) / self.work.settings.steps)


def _report(work: Work, config: dict[str, Any], curves: Curves) -> Report:
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
            "tokens": curves.last.get("tokens", 0),
        }
    }


def _vocabulary_size(tokens: Path) -> int:
    return json.loads((tokens / "tokens.json").read_text("utf-8"))["vocabulary_size"]
