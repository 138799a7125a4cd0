"""Audit queries over a ledger of many rows: `python tests/benchmarks/audit.py [--rows N] [--json FILE]`.

The ledger is generated: a crawl of 20 WARC files whose records pass the usual stages and are removed at
FineWeb's rates, written by the same table writer's settings as the real one. Each query runs in this process,
on a warm page cache; the figure is the median of the repeats in seconds. There is no peer: none of the
pipelines that we know keeps a ledger of documents.
"""

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_config.settings import Settings, Source
from tasks.audit.comparison import compare
from tasks.audit.ledger import Ledger
from tasks.audit.removal_review import why
from tasks.audit.trace import trace
from tasks.lineage import Node, RunRecord
from tasks.steps.selection import Selector
from tasks.steps.shards import DOCUMENT_SCHEMA, POINTER_SCHEMA, REMOVED_SCHEMA, ROWS_PER_GROUP, ZSTD_LEVEL
from tasks.store import Store, write_json

SHARDS = 20
SURVIVE = {  # share of what a stage reads that it keeps
    "url_filtering": 0.98,
    "text_extraction": 0.95,
    "language_identification": 0.45,
    "quality_filtering": 0.5,
    "deduplication": 0.8,
    "pii_scrubbing": 1.0,
    "document_split": 1.0,
}
REASONS = ("first_reason", "second_reason", "third_reason")
SENTENCE = "the crawl holds pages of many kinds and most of them are short and say what others said"


def generate(home: Path, rows: int) -> tuple[Ledger, int]:
    """A ledger of a run over `rows` records; returns it with the number of rows that it holds."""
    store, nodes, total = Store(home / "store"), [], 0
    for stage, share in SURVIVE.items():
        folder = store.building_folder(stage, _key(stage))
        kept_all = lost_all = 0
        for shard in range(SHARDS):
            records = np.arange(shard, rows, SHARDS)
            reach = _reached(records, stage)
            kept = reach[_draw(reach, stage) < share]
            lost = reach[_draw(reach, stage) >= share]
            schema = POINTER_SCHEMA if stage == "url_filtering" else DOCUMENT_SCHEMA
            split = "train" if stage == "document_split" else "part"
            _write(folder / "documents" / f"{split}-{shard:05d}.parquet", schema, kept, stage)
            _write(folder / "removed" / f"part-{shard:05d}.parquet", REMOVED_SCHEMA, lost, stage)
            kept_all, lost_all = kept_all + len(kept), lost_all + len(lost)
        total += kept_all + lost_all
        report = {
            "read": kept_all + lost_all,
            "kept": kept_all,
            "removed": {"first_reason": lost_all},
            "failed": {},
        }
        write_json(folder / "report.json", report)
        recipe = {"inputs": [], "version": 1, "libraries": {}}
        output = store.commit(stage, _key(stage), recipe, "crawl")
        inputs = (nodes[-1].name,) if nodes else ()
        nodes.append(Node(stage=stage, label="crawl", key=output.key, digest=output.digest, inputs=inputs))
    settings = Settings(name="generated", sources=(Source(name="crawl", kind="warc", uris=("a.warc.gz",)),))
    run = RunRecord(
        id="generated", name="generated", started="", nodes=nodes, settings=settings.model_dump(mode="json")
    )
    return Ledger(run, store), total


def _key(stage: str) -> str:
    return hashlib.sha256(stage.encode()).hexdigest()


def _draw(records: np.ndarray, stage: str) -> np.ndarray:
    """A number in [0, 1) for each record, fixed by record and stage."""
    seed = int(_key(stage)[:8], 16)
    mixed = (records.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(
        seed * 0x100000001B3 % 2**64
    )
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2**53


def _reached(records: np.ndarray, stage: str) -> np.ndarray:
    for earlier, share in SURVIVE.items():
        if earlier == stage:
            return records
        records = records[_draw(records, earlier) < share]
    return records


def _write(path: Path, schema: pa.Schema, records: np.ndarray, stage: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=ZSTD_LEVEL) as writer:
        for start in range(0, len(records), ROWS_PER_GROUP):
            writer.write_table(_table(records[start : start + ROWS_PER_GROUP], schema, stage))


def _table(records: np.ndarray, schema: pa.Schema, stage: str) -> pa.Table:
    numbers = records.tolist()
    columns: dict[str, Any] = {
        "id": [
            f"urn:uuid:{number:08x}-0000-4000-8000-{number * 2654435761 % 2**48:012x}" for number in numbers
        ],
        "url": [f"https://www.site{number % 50021}.example/a/page-{number}.html" for number in numbers],
        "source": ["crawl"] * len(numbers),
        "file_path": [f"crawl/part-{number % SHARDS:05d}.warc.gz" for number in numbers],
        "warc_offset": [number * 9973 for number in numbers],
        "warc_length": [9973] * len(numbers),
        "date": ["2024-02-20T21:11:00Z"] * len(numbers),
        "dump": ["CC-MAIN-2024-10"] * len(numbers),
        "text": [f"{SENTENCE[number % 7 :]} {number}" for number in numbers],
        "language": ["en"] * len(numbers),
        "language_score": (0.65 + 0.35 * _draw(records, "score")).tolist(),
        "fate": ["removed"] * len(numbers),
        "reason": [REASONS[number % len(REASONS)] for number in numbers],
        "value": [f"{value:.4f}" for value in _draw(records, stage)],
        "excerpt": [SENTENCE] * len(numbers),
    }
    return pa.table(
        {field.name: pa.array(columns.get(field.name, [None] * len(numbers)), field.type) for field in schema}
    )


def queries(ledger: Ledger, rows: int) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    fates = f"SELECT stage, fate, reason, count(*) FROM ({ledger.fates('id')}) GROUP BY ALL"
    url = f"https://www.site{(rows // 3) % 50021}.example/a/page-{rows // 3}.html"
    other = Ledger(ledger.run.model_copy(update={"id": "other"}), ledger.store)
    return {
        "trace_url": lambda: trace(ledger, Selector("url", url)),
        "trace_domain": lambda: trace(ledger, Selector("domain", "site77.example"), most=1),
        "why_reason": lambda: why(ledger, "language_identification", "second_reason"),
        "all_fates": lambda: ledger.rows(fates),
        "compare": lambda: compare(ledger, other),
    }


def measure(run: Callable[[], Any], repeats: int) -> Iterator[float]:
    """Seconds of each run, after one that fills the page cache."""
    run()
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        yield time.perf_counter() - started


def main() -> None:
    """Prints a line for each query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=2_600_000, help="records read (their ledger holds 3.9 times as many rows)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["TOKENMILL_HOME"] = str(home)
        ledger, total = generate(home, chosen.rows)
        size = sum(path.stat().st_size for path in home.rglob("*.parquet"))
        print(f"{total:,} ledger rows, {size / 1e6:,.0f} MB", file=sys.stderr)
        results = {}
        for name, run in queries(ledger, chosen.rows).items():
            seconds = list(measure(run, chosen.repeats))
            middle = statistics.median(seconds)
            results[f"{name}_seconds"] = {"ours": middle, "peer": None, "ratio": None}
            spread = f"median of {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f}"
            print(f"{name:<20} {middle:>8.2f} s  {spread}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
