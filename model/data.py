"""Rows of tokens for training: which row of which source comes when is a pure function of seed and step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline_config.errors import TrainingError


class TokenStream:
    """The shards of one source end to end, cut into rows of T tokens and the token after them."""

    def __init__(self, paths: list[Path], token_bytes: int, row_tokens: int):
        dtype = np.dtype("<u2" if token_bytes == 2 else "<u4")
        self.shards = [np.memmap(path, dtype=dtype, mode="r") for path in paths]
        self.ends = np.cumsum([len(shard) for shard in self.shards])
        self.row_tokens = row_tokens
        tokens = int(self.ends[-1]) if paths else 0
        self.rows = max(0, (tokens - 1) // row_tokens)

    def row(self, index: int) -> np.ndarray:
        """T + 1 tokens; neighbouring rows share one."""
        start = index * self.row_tokens
        missing = self.row_tokens + 1
        parts = []
        while missing:
            shard = int(np.searchsorted(self.ends, start, side="right"))
            offset = start - (int(self.ends[shard - 1]) if shard else 0)
            part = self.shards[shard][offset : offset + missing]
            parts.append(part)
            start, missing = start + len(part), missing - len(part)
        return np.concatenate(parts).astype(np.int64)


class TokenRows:
    """Rows of a split of a tokens folder, mixed by the weights of their sources."""

    def __init__(self, folder: Path, split: str, row_tokens: int, weights: dict[str, float], seed: int):
        description = read_description(folder)
        self.seed = seed
        self.sources = list(dict.fromkeys(shard["source"] for shard in description["shards"]))
        self.streams = [
            TokenStream(
                [
                    folder / shard["file"]
                    for shard in description["shards"]
                    if shard["source"] == source and shard["split"] == split
                ],
                description["token_bytes"],
                row_tokens,
            )
            for source in self.sources
        ]
        usable = [number for number, stream in enumerate(self.streams) if stream.rows]
        self.sources = [self.sources[number] for number in usable]
        self.streams = [self.streams[number] for number in usable]
        self.weights = np.array([weights.get(source, 1.0) for source in self.sources])
        self.rows = sum(stream.rows for stream in self.streams)
        if not self.rows:
            raise TrainingError(
                f"the {split} split has no row of {row_tokens} tokens: take more documents, "
                "or a smaller training.model.max_context"
            )

    def schedule(self, count: int) -> np.ndarray:
        """(source, row) of the first `count` rows, [count, 2].

        At every point each source has its share of the rows, to within one. A source's rows come in a
        new random order each time it is gone through.
        Source: Tijdeman 1980, "The chairman assignment problem", Discrete Mathematics 32.
        """
        shares = self.weights / self.weights.sum()
        slack = 1 / (2 * len(shares) - 2) if len(shares) > 1 else 0.0
        taken = np.zeros(len(shares), dtype=np.int64)
        sources = np.empty(count, dtype=np.int64)
        for position in range(count):
            due = (position + 1) * shares - taken
            deadline = np.where(due >= slack, (1 - slack - due) / shares, np.inf)
            sources[position] = np.argmin(deadline)
            taken[sources[position]] += 1
        rows = np.empty(count, dtype=np.int64)
        for number, stream in enumerate(self.streams):
            rows[sources == number] = self._order(number, stream.rows, int(taken[number]))
        return np.stack([sources, rows], axis=1)

    def in_order(self, count: int) -> np.ndarray:
        """(source, row) of at most `count` rows, evenly spread over all rows, [rows, 2]."""
        pairs = [(number, row) for number, stream in enumerate(self.streams) for row in range(stream.rows)]
        chosen = np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(int)
        return np.array(pairs)[chosen]

    def batch(self, pairs: np.ndarray) -> tuple[Tensor, Tensor]:
        """Input ids and targets [B, T] of the named rows; targets are the inputs one position later."""
        rows = torch.from_numpy(np.stack([self.streams[source].row(int(row)) for source, row in pairs]))
        return rows[:, :-1], rows[:, 1:]

    def _order(self, source: int, rows: int, count: int) -> np.ndarray:
        epochs = -(-count // rows) if count else 0
        orders = [
            np.random.default_rng([self.seed, source, epoch]).permutation(rows) for epoch in range(epochs)
        ]
        return np.concatenate(orders)[:count] if orders else np.empty(0, dtype=np.int64)


def read_description(folder: Path) -> dict[str, Any]:
    """`tokens.json`: vocabulary size, token width, shards with split, source and tokens."""
    return json.loads((folder / "tokens.json").read_text("utf-8"))
