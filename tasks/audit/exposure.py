"""Which rows of which checkpoints' training held a document: from its tokens to the steps that saw them."""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_config.settings import Training
from tasks.audit.ledger import Ledger, text_list
from tasks.lineage import Node
from tasks.store import MANIFEST, Store

MOST_STEPS = 10  # named one by one; all are counted


def token_ranges(ledger: Ledger, packing: Node, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the tokens of records (`id`, `source`) are: shard, split, first and one past the last token."""
    files = ledger.files(packing, "index")
    if not files or not records:
        return []
    ranges = ledger.rows(
        "SELECT id, source, parse_filename(filename, true) AS shard, start_token, end_token, token_count "
        f"FROM read_parquet({text_list(files)}, filename = true) "
        "WHERE (id, source) IN (SELECT unnest(?), unnest(?)) ORDER BY shard, start_token",
        [[record["id"] for record in records], [record["source"] for record in records]],
    )
    return [found | {"split": found["shard"].split("-")[0]} for found in ranges]


def trainings_of(store: Store, tokens_digest: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, manifest) of every checkpoint in the store that was trained on token shards of a digest."""
    for folder in store.folders("training"):
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
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
    touched: dict[str, set[int]] = {source: set() for source in sources}
    for part in ranges:
        if part["split"] == "train" and part["source"] in touched:
            touched[part["source"]].update(rows_of(Path(folder), part, settings.model.max_context))
    steps: set[int] = set()
    for number, source in enumerate(sources):
        mine = (schedule[:, 0] == number) & np.isin(schedule[:, 1], list(touched[source]))
        steps.update((np.flatnonzero(mine) // settings.rows_per_step).tolist())
    ordered = sorted(steps)
    return {
        "steps": settings.steps,
        "rows": sum(map(len, touched.values())),
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


@lru_cache(maxsize=8)
def _shards(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "tokens.json").read_text("utf-8"))["shards"]


def rows_of(folder: Path, part: dict[str, Any], row_tokens: int) -> range:
    """The rows of a source's stream that hold tokens of a range; a row holds `row_tokens` + 1 tokens."""
    before = total = 0
    for shard in _shards(folder):
        if shard["split"] == part["split"] and shard["source"] == part["source"]:
            if Path(shard["file"]).stem == part["shard"]:
                before = total
            total += shard["tokens"]
    start, end = before + part["start_token"], before + part["end_token"]
    rows = max(0, (total - 1) // row_tokens)
    return range(max(0, -(-start // row_tokens) - 1), min(rows, -(-end // row_tokens)))
