"""Which rows of which checkpoints' training held a document: from its tokens to the steps that saw them."""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_config.settings import Training
from tasks.audit.ledger import Ledger, connect, text_list
from tasks.lineage import Node
from tasks.store import Store

MOST_STEPS = 10  # named one by one; all are counted


def token_ranges(ledger: Ledger, packing: Node, identity: str, source: str) -> list[dict[str, Any]]:
    """Where a document's tokens are: shard, split, first and one past the last token, and their count."""
    files = ledger.files(packing, "index")
    if not files:
        return []
    found = connect().execute(
        "SELECT parse_filename(filename, true), start_token, end_token, token_count FROM "
        f"read_parquet({text_list(files)}, filename = true) WHERE id = ? AND source = ? ORDER BY 1, 2",
        [identity, source],
    )
    names = ("shard", "start_token", "end_token", "token_count")
    return [
        dict(zip(names, row, strict=True)) | {"split": row[0].split("-")[0], "source": source}
        for row in found.fetchall()
    ]


def trainings_of(store: Store, tokens_digest: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, manifest) of every checkpoint in the store that was trained on token shards of a digest."""
    for path in sorted(store.root.glob("training/[0-9a-f]*/manifest.json")):
        manifest = json.loads(path.read_text("utf-8"))
        if tokens_digest in manifest["recipe"]["inputs"]:
            yield manifest["key"], manifest


def seen_by(store: Store, packing: Node, ranges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every checkpoint trained on these shards: which of its steps saw tokens of the ranges."""
    folder = store.path(packing.output)
    return [
        {"key": key, "digest": manifest["digest"]} | _steps(str(folder), manifest["recipe"], ranges)
        for key, manifest in trainings_of(store, packing.digest)
    ]


def _steps(folder: str, recipe: dict[str, Any], ranges: list[dict[str, Any]]) -> dict[str, Any]:
    settings = Training.model_validate(recipe["settings"])
    weights = next(part for part in recipe["inputs"] if isinstance(part, dict))
    sources, schedule = _schedule(folder, settings, tuple(sorted(weights.items())))
    steps: set[int] = set()
    rows = 0
    for part in ranges:
        if part["split"] == "train" and part["source"] in sources:
            touched = rows_of(Path(folder), part, settings.model.max_context)
            rows += len(touched)
            mine = (schedule[:, 0] == sources.index(part["source"])) & np.isin(schedule[:, 1], touched)
            steps.update((np.flatnonzero(mine) // settings.rows_per_step).tolist())
    ordered = sorted(steps)
    return {
        "steps": settings.steps,
        "rows": rows,
        "steps_that_saw_it": len(ordered),
        "first_steps": ordered[:MOST_STEPS],
        "last_step": ordered[-1] if ordered else None,
        "validation": any(part["split"] == "validation" for part in ranges),
    }


@lru_cache(maxsize=8)
def _schedule(
    folder: str, settings: Training, weights: tuple[tuple[str, float], ...]
) -> tuple[list[str], np.ndarray]:
    from model.data import TokenRows  # PyTorch takes seconds to import

    rows = TokenRows(Path(folder), "train", settings.model.max_context, dict(weights), settings.seed)
    return rows.sources, rows.schedule(settings.steps * settings.rows_per_step)


def rows_of(folder: Path, part: dict[str, Any], row_tokens: int) -> range:
    """The rows of a source's stream that hold tokens of a range; a row holds `row_tokens` + 1 tokens."""
    before = total = 0
    for shard in json.loads((folder / "tokens.json").read_text("utf-8"))["shards"]:
        if shard["split"] == part["split"] and shard["source"] == part["source"]:
            if Path(shard["file"]).stem == part["shard"]:
                before = total
            total += shard["tokens"]
    start, end = before + part["start_token"], before + part["end_token"]
    rows = max(0, (total - 1) // row_tokens)
    return range(max(0, -(-start // row_tokens) - 1), min(rows, -(-end // row_tokens)))
