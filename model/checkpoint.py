"""Checkpoints: what a run goes on from, and what it leaves for others."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from model.architecture import GPT
from pipeline_config.settings import ModelSettings

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def save_progress(path: Path, model: GPT, optimizer: Optimizer, losses: list[dict[str, float]]) -> None:
    """Everything that the next step depends on, written whole or not at all."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load_progress(path: Path, model: GPT, optimizer: Optimizer) -> list[dict[str, float]]:
    """Restores model and optimizer and returns the losses so far; none if there is nothing to resume."""
    if not path.is_file():
        return []
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["losses"]


def export(folder: Path, model: GPT, tokenizer: bytes, facts: dict[str, Any]) -> None:
    """Weights, configuration and tokenizer, for inference; the same bytes for the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    del weights["vocabulary_projection.weight"]  # tied to the token embedding
    save_file(weights, folder / WEIGHTS)
    vocabulary_size = model.token_embedding.num_embeddings
    config = {"model": model.settings.model_dump(), "vocabulary_size": vocabulary_size, **facts}
    (folder / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", "utf-8")
    (folder / TOKENIZER).write_bytes(tokenizer)


def load(folder: Path) -> tuple[GPT, dict[str, Any]]:
    """The model of an exported checkpoint, ready for inference, and its configuration."""
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    model = GPT(ModelSettings.model_validate(config["model"]), config["vocabulary_size"])
    weights = load_file(folder / WEIGHTS)
    weights["vocabulary_projection.weight"] = weights["token_embedding.weight"]
    model.load_state_dict(weights)
    return model.eval(), config
