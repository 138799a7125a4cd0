"""The trainer: `torchrun -m model.train CONFIG`, on one process or many, CPU or GPU.

CONFIG is a JSON file with `training` (settings), `tokens`, `tokenizer`, `output`, `scratch` (folders and
files) and `weights` (of the sources). Progress goes to `scratch/metrics.jsonl`, a line an event; the
checkpoint and the losses go to `output`. A run that was interrupted goes on from its last checkpoint.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.architecture import GPT
from model.checkpoint import export, load_progress, save_progress
from model.data import TokenRows, read_description
from pipeline_config.errors import TrainingError
from pipeline_config.processes import die_with_parent
from pipeline_config.settings import Training

VALIDATION_BATCH_ROWS = 16
FINAL_LR_SHARE = 0.1
STOPPED = 143  # as shells report SIGTERM
INIT = 1  # becomes the parent of processes whose own parent has died


@dataclass
class Process:
    """This process among those that torchrun started."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: str) -> "Process":
        """Joins the other processes, if there are any."""
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        local = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(local)
        if size > 1:
            dist.init_process_group("nccl" if cuda else "gloo")
        return cls(rank, size, local)

    def mean(self, value: Tensor) -> float:
        """The mean of a scalar over all processes."""
        value = value.detach().clone()
        if self.size > 1:
            dist.all_reduce(value)
        return value.item() / self.size


def learning_rate(step: int, settings: Training) -> float:
    """Linear warm-up, then cosine decay to a tenth of the peak."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return settings.learning_rate * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)


def make_optimizer(model: nn.Module, settings: Training) -> torch.optim.AdamW:
    """AdamW; only matrices decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


class Trainer:
    """Trains a GPT on token shards."""

    def __init__(self, config: dict[str, Any]):
        self.settings = Training.model_validate(config["training"])
        torch.set_num_threads(self.settings.threads)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(self.settings.seed)
        self.process = Process.join(self.settings.device)
        self.output, self.scratch = Path(config["output"]), Path(config["scratch"])
        self.tokenizer = Path(config["tokenizer"]).read_bytes()
        self.facts = config["facts"]
        folder, row_tokens = Path(config["tokens"]), self.settings.model.max_context
        rows = [
            TokenRows(folder, split, row_tokens, config["weights"], self.settings.seed)
            for split in ("train", "validation")
        ]
        self.train_rows, self.validation_rows = rows
        vocabulary_size = read_description(folder)["vocabulary_size"]
        self.model = GPT(self.settings.model, vocabulary_size).to(self.process.device)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.losses: list[dict[str, float]] = []
        self.stop_asked = False
        self.schedule = self.train_rows.schedule(self.settings.steps * self.settings.rows_per_step)
        self.to_validate = self.validation_rows.in_order(self.settings.validation_rows)

    def run(self) -> None:
        """Trains to the last step and exports the checkpoint.

        Raises:
            TrainingError: the loss is not a finite number.
        """
        progress = self.scratch / "progress.pt"
        self.losses = load_progress(progress, self.model, self.optimizer)
        for point in self.losses:
            self._report(point)
        wrapped = DistributedDataParallel(self.model) if self.process.size > 1 else self.model
        for step in range(len(self.losses), self.settings.steps):
            event = self._step(wrapped, step)
            due = (step + 1) % self.settings.checkpoint_every_steps == 0
            if (due or self.stop_asked) and self.process.rank == 0:
                save_progress(progress, self.model, self.optimizer, self.losses)
            self._report(event)
            if self.stop_asked and self.process.rank == 0:
                print(f"stopped after step {step + 1} of {self.settings.steps}; it is saved", flush=True)
                os._exit(STOPPED)  # the other processes wait for this one in the middle of their step
        if self.process.rank == 0:
            export(self.output / "checkpoint", self.model, self.tokenizer, self.facts)
            lines = "".join(json.dumps(loss, sort_keys=True) + "\n" for loss in self.losses)
            (self.output / "losses.jsonl").write_text(lines, "utf-8")

    def stop_when_asked(self) -> None:
        """On SIGTERM the first process saves its state after the step that it is in, and ends."""
        signal.signal(signal.SIGTERM, self._ask_to_stop if self.process.rank == 0 else signal.SIG_IGN)

    def _ask_to_stop(self, *_: Any) -> None:
        self.stop_asked = True

    def _step(self, model: nn.Module, step: int) -> dict[str, float]:
        started = time.perf_counter()
        point: dict[str, float] = {"step": step}
        if step % self.settings.validation_every_steps == 0:
            point["val_loss"] = self._validate()
        rate = learning_rate(step, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        ids_BT, targets_BT = self._batch(step)
        with self._precision():
            _, loss = model(ids_BT, targets_BT)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        point |= {"train_loss": self.process.mean(loss), "learning_rate": rate, "grad_norm": norm.item()}
        if not math.isfinite(point["train_loss"]):
            raise TrainingError(
                f"the loss is {point['train_loss']} at step {step}: try a smaller training.learning_rate"
            )
        if step == self.settings.steps - 1:
            point["val_loss"] = self._validate()
        self.losses.append(point)
        tokens = self.settings.rows_per_step * self.settings.model.max_context
        return point | {
            "tokens": tokens * (step + 1),
            "tokens_per_second": tokens / (time.perf_counter() - started),
        }

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        rows = self.settings.rows_per_step
        mine = self.schedule[step * rows : (step + 1) * rows][self.process.rank :: self.process.size]
        ids_BT, targets_BT = self.train_rows.batch(mine)
        return ids_BT.to(self.process.device), targets_BT.to(self.process.device)

    @torch.no_grad()
    def _validate(self) -> float:
        self.model.eval()
        losses = [
            (
                len(pairs),
                self.model(*(part.to(self.process.device) for part in self.validation_rows.batch(pairs)))[1],
            )
            for pairs in _chunks(self.to_validate, VALIDATION_BATCH_ROWS)
        ]
        self.model.train()
        return sum(rows * loss.item() for rows, loss in losses) / len(self.to_validate)

    def _precision(self) -> Any:
        if self.process.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    def _report(self, event: dict[str, float]) -> None:
        if self.process.rank == 0:
            with (self.scratch / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")
            if "val_loss" in event and "tokens_per_second" in event:
                print(_sentence(event, self.settings.steps), flush=True)


def _sentence(event: dict[str, float], steps: int) -> str:
    return (
        f"step {event['step'] + 1:,} of {steps:,}: training loss {event['train_loss']:.4f}, "
        f"validation loss {event['val_loss']:.4f}, {event['tokens_per_second']:,.0f} tokens/s"
    )


def _chunks(pairs: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size]


def main(path: str) -> int:
    """Runs the trainer; 1 with the reason in `scratch/error.txt` if it cannot."""
    if (parent := os.getppid()) == INIT:  # torchrun's agent is dead already
        return 1
    die_with_parent(parent)
    config = json.loads(Path(path).read_text("utf-8"))
    try:
        trainer = Trainer(config)
        trainer.stop_when_asked()
        trainer.run()
    except TrainingError as error:
        (Path(config["scratch"]) / "error.txt").write_text(str(error), "utf-8")
        return 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
