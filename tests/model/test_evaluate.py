"""Evaluation: bits per byte as computed by hand, and sums that add up."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from model.architecture import GPT
from model.checkpoint import export
from model.data import TokenRows
from model.evaluate import evaluate, main, token_bytes
from pipeline_config.settings import Evaluation, ModelSettings

ROW = 4
MODEL = ModelSettings(layers=1, heads=1, width=8, max_context=ROW)


def write_tokens(folder: Path, sources: dict[str, list[int]], vocabulary_size: int = 4) -> Path:
    """A tokens folder whose validation split has these tokens of each source."""
    folder.mkdir(exist_ok=True)
    shards = []
    for source, tokens in sources.items():
        np.array(tokens, dtype="<u2").tofile(folder / f"{source}.ds")
        shards.append(
            {"file": f"{source}.ds", "split": "validation", "source": source, "tokens": len(tokens)}
        )
    described = {"vocabulary_size": vocabulary_size, "token_bytes": 2, "shards": shards}
    (folder / "tokens.json").write_text(json.dumps(described))
    return folder


class Known:
    """A model that gives the next token these probabilities, whatever came before."""

    def __init__(self, *probabilities: float):
        self.logits_V = torch.tensor(probabilities, dtype=torch.float64).log()

    def __call__(self, ids_BT: Tensor) -> tuple[Tensor, None]:
        return self.logits_V.expand(*ids_BT.shape, -1), None


def measured(folder: Path, model: Any, sizes: list[int], **settings: int) -> dict[str, Any]:
    rows = TokenRows(folder, "validation", ROW, {}, seed=0)
    return evaluate(model, rows, np.array(sizes), Evaluation(**settings))


def test_bits_per_byte_of_a_known_model_are_those_computed_by_hand(tmp_path: Path) -> None:
    folder = write_tokens(tmp_path, {"web": [0, 1, 2, 3, 1, 1, 1, 2, 2]})
    found = measured(folder, Known(1 / 2, 1 / 4, 1 / 8, 1 / 8), sizes=[1, 2, 3, 0])
    # targets 1 2 3 1 | 1 1 2 2: 2 + 3 + 3 + 2 + 2 + 2 + 3 + 3 bits; 2 + 3 + 0 + 2 + 2 + 2 + 3 + 3 bytes
    assert found["web"] == {
        **{"rows": 2, "tokens": 8, "bytes": 17},
        "val_loss": pytest.approx(20 * math.log(2) / 8),
        "bits_per_byte": pytest.approx(20 / 17),
    }
    assert found["all"] == found["web"]


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_the_sources_add_up_to_all_whatever_the_batch(tmp_path: Path, batch_rows: int) -> None:
    random = np.random.default_rng(0)
    folder = write_tokens(tmp_path, {name: random.integers(0, 4, n).tolist() for name, n in SOURCES.items()})
    found = measured(folder, Known(0.4, 0.3, 0.2, 0.1), sizes=[1, 2, 3, 4], batch_rows=batch_rows)
    parts, everything = [found["books"], found["web"]], found["all"]
    assert list(found) == ["books", "web", "all"]
    assert [part["rows"] for part in parts] == [(n - 1) // ROW for n in (SOURCES["books"], SOURCES["web"])]
    for name in ("rows", "tokens", "bytes"):
        assert everything[name] == sum(part[name] for part in parts)
    for name, weight in (("val_loss", "tokens"), ("bits_per_byte", "bytes")):
        total = sum(part[name] * part[weight] for part in parts)
        assert everything[name] == pytest.approx(total / everything[weight])


SOURCES = {"web": 41, "books": 10, "short": ROW}  # the last has no whole row


def test_at_most_so_many_rows_are_taken_spread_over_the_split(tmp_path: Path) -> None:
    folder = write_tokens(tmp_path, {"web": [0] * 41, "books": [0] * 41})
    found = measured(folder, Known(0.25, 0.25, 0.25, 0.25), [1, 1, 1, 1], max_rows=6)
    assert (found["web"]["rows"], found["books"]["rows"], found["all"]["rows"]) == (3, 3, 6)
    assert found["all"]["val_loss"] == pytest.approx(math.log(4))


def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer with some merges and a special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {character: number for number, character in enumerate(alphabet)}
    tokens |= {"th": 256, "the": 257, "Ã©": 258}
    tokenizer = Tokenizer(models.BPE(tokens, [("t", "h"), ("th", "e"), ("Ã", "©")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return tokenizer


@pytest.mark.parametrize("text", ["the other", "é è €", "\n\t \x00", "日本 🎉", "<|endoftext|>", ""])
def test_the_bytes_of_the_tokens_are_those_of_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    sizes = token_bytes(tokenizer)
    assert len(sizes) == tokenizer.get_vocab_size() == 260
    special = text == "<|endoftext|>"
    assert sizes[tokenizer.encode(text).ids].sum() == (0 if special else len(text.encode()))


def prepare(folder: Path, sources: dict[str, list[int]]) -> Path:
    """The configuration of an evaluation of a fresh model."""
    torch.manual_seed(0)
    export(folder / "checkpoint", GPT(MODEL, 260), byte_tokenizer().to_str().encode(), {})
    config = {
        "checkpoint": str(folder / "checkpoint"),
        "tokens": str(write_tokens(folder / "tokens", sources, 260)),
        "evaluation": Evaluation().model_dump(),
        "output": str(folder / "evaluation.json"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def test_the_command_writes_the_measures_of_a_checkpoint_and_the_same_bytes_again(tmp_path: Path) -> None:
    config = prepare(tmp_path, {"web": list(range(100, 180))})
    assert main(str(config)) == 0
    first = (tmp_path / "evaluation.json").read_bytes()
    found = json.loads(first)
    assert found["all"]["val_loss"] == pytest.approx(math.log(260), abs=0.1)  # it knows nothing yet
    assert found["all"]["bits_per_byte"] == pytest.approx(found["all"]["val_loss"] / math.log(2))
    subprocess.run([sys.executable, "-m", "model.evaluate", str(config)], check=True)
    assert (tmp_path / "evaluation.json").read_bytes() == first


def test_a_split_without_a_row_is_named(tmp_path: Path) -> None:
    config = prepare(tmp_path, {"web": [1] * ROW})
    ended = subprocess.run(
        [sys.executable, "-m", "model.evaluate", str(config)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert re.search(r"TrainingError: the validation split has no row of 4 tokens", ended.stderr)
