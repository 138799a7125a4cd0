"""The loss of a checkpoint on the validation split: `python -m model.evaluate CONFIG`.

CONFIG is a JSON file with `checkpoint`, `tokens` (folders), `evaluation` (settings) and `output` (file).
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from model.architecture import GPT
from model.checkpoint import TOKENIZER, load
from model.data import TokenRows
from pipeline_config.settings import Evaluation


@torch.no_grad()
def evaluate(model: GPT, rows: TokenRows, token_bytes_V: np.ndarray, settings: Evaluation) -> dict[str, Any]:
    """For each source: rows, tokens, bytes, `val_loss` (nats a token) and `bits_per_byte`.

    Args:
        token_bytes_V: UTF-8 bytes of each token, [V]; 0 for special tokens.
    """
    sums: dict[str, list[float]] = {}
    chosen = rows.in_order(settings.max_rows)
    for start in range(0, len(chosen), settings.batch_rows):
        pairs = chosen[start : start + settings.batch_rows]
        ids_BT, targets_BT = rows.batch(pairs)
        logits_BTV, _ = model(ids_BT)
        losses_BT = F.cross_entropy(logits_BTV.transpose(1, 2), targets_BT, reduction="none")
        for (source, _row), losses_T, targets_T in zip(pairs, losses_BT, targets_BT, strict=True):
            total = sums.setdefault(rows.sources[source], [0, 0, 0, 0.0])
            total[0] += 1
            total[1] += len(targets_T)
            total[2] += int(token_bytes_V[targets_T.numpy()].sum())
            total[3] += float(losses_T.double().sum())
    everything = [sum(values) for values in zip(*sums.values(), strict=True)]
    return {name: _measures(*values) for name, values in sorted(sums.items())} | {
        "all": _measures(*everything)
    }


def _measures(rows: float, tokens: float, text_bytes: float, loss: float) -> dict[str, float]:
    bits = loss / math.log(2)
    return {
        "rows": int(rows),
        "tokens": int(tokens),
        "bytes": int(text_bytes),
        "val_loss": loss / tokens,
        "bits_per_byte": bits / text_bytes if text_bytes else math.nan,
    }


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """UTF-8 bytes of each token of a byte-level tokenizer, [V]: a character stands for a byte."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    names = (tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size()))
    return np.array([0 if name in special else len(name) for name in names])


def main(path: str) -> int:
    """Writes the measures of one checkpoint."""
    config = json.loads(Path(path).read_text("utf-8"))
    folder, settings = Path(config["checkpoint"]), Evaluation.model_validate(config["evaluation"])
    model, _ = load(folder)
    rows = TokenRows(Path(config["tokens"]), "validation", model.settings.max_context, {}, seed=0)
    sizes = token_bytes(Tokenizer.from_file(str(folder / TOKENIZER)))
    measures = evaluate(model, rows, sizes, settings)
    Path(config["output"]).write_text(json.dumps(measures, indent=1, sort_keys=True) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
