"""Data folders with runs that are built by hand, so that every number in them is known."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline_config.settings import Settings
from tasks.audit.ledger import Ledger
from tasks.lineage import Node, RunRecord, node_of
from tasks.steps.deduplication import CLUSTER_SCHEMA
from tasks.steps.packing import INDEX_SCHEMA
from tasks.steps.shards import DOCUMENT_SCHEMA, POINTER_SCHEMA, REMOVED_SCHEMA, TableWriter
from tasks.store import Store, digest_of, write_json

Row = dict[str, Any]
SOURCES = [{"name": name, "kind": "documents", "uris": [f"{name}.jsonl"]} for name in ("web", "books")]


class HandMade:
    """A data folder whose outputs and runs are written down row by row."""

    def __init__(self, home: Path):
        self.home = home
        self.store = Store(home / "store")
        self.made = 0

    def output(
        self,
        stage: str,
        kept: Sequence[Row] | Mapping[str, Sequence[Row]] = (),
        lost: Sequence[Row] = (),
        *,
        label: str = "all",
        inputs: Sequence[Node] = (),
        content: Sequence[Any] = (),
        version: int = 1,
        fill: Callable[[Path], None] | None = None,
    ) -> Node:
        """A committed output of a document stage: what it kept (by file) and what it lost."""
        tables = dict(kept) if isinstance(kept, Mapping) else {"part-00000": kept}
        schema = POINTER_SCHEMA if stage == "url_filtering" else DOCUMENT_SCHEMA

        def write(folder: Path) -> None:
            for name, rows in tables.items():
                write_table(folder / "documents" / f"{name}.parquet", schema, rows)
            write_table(folder / "removed" / "part-00000.parquet", REMOVED_SCHEMA, lost)
            reasons = {kind: Counter(r["reason"] for r in lost if r["fate"] == kind) for kind in FATES}
            count = sum(map(len, tables.values()))
            write_json(folder / "report.json", {"read": count + len(lost), "kept": count, **reasons})
            if fill:
                fill(folder)

        return self.commit(stage, write, label, inputs, content, version=version)

    def commit(
        self,
        stage: str,
        write: Callable[[Path], None],
        label: str = "all",
        inputs: Sequence[Node] = (),
        content: Sequence[Any] = (),
        settings: Row | None = None,
        version: int = 1,
    ) -> Node:
        """A committed output with whatever files `write` makes."""
        self.made += 1
        recipe = {
            "stage": stage,
            "version": version,
            "settings": settings or {"number": self.made},
            "inputs": [*content, *(node.digest for node in inputs)],
            "libraries": {"python": "3.11"},
        }
        write(self.store.building_folder(stage, digest_of(recipe)))
        output = self.store.commit(stage, digest_of(recipe), recipe, label)
        return node_of(output, [node.output for node in inputs])

    def run(self, *nodes: Node, name: str = "hand", **settings: Any) -> RunRecord:
        """The saved record of a run through the nodes."""
        chosen = Settings.model_validate({"name": name, "sources": SOURCES} | settings)
        number = len(list((self.home / "runs").glob("*.json")))
        record = RunRecord(
            id=f"20260101T00000{number}-{number:08x}",
            name=name,
            status="finished",
            started="2026-01-01T00:00:00+00:00",
            settings=chosen.model_dump(mode="json"),
            nodes=list(nodes),
        )
        record.save()
        return record

    def ledger(self, *nodes: Node, **settings: Any) -> Ledger:
        """The ledger of a new run through the nodes."""
        return Ledger(self.run(*nodes, **settings), self.store)

    def packing(self, shards: Mapping[str, tuple[str, Sequence[tuple[str, int]]]], *inputs: Node) -> Node:
        """Token shards, by name (source, [(id, tokens)]); an end of document follows every document.

        Every token of the folder has another value, so that a row shows which tokens it holds.
        """

        def write(folder: Path) -> None:
            described, written = [], 0
            (folder / "tokens").mkdir()
            for name, (source, documents) in shards.items():
                ends = np.cumsum([tokens + 1 for _, tokens in documents]).tolist()
                rows = [
                    {"id": i, "source": source, "start_token": e - n - 1, "end_token": e, "token_count": n}
                    for (i, n), e in zip(documents, ends, strict=True)
                ]
                write_table(folder / "index" / f"{name}.parquet", INDEX_SCHEMA, rows)
                np.arange(written, written + ends[-1]).astype("<u2").tofile(folder / "tokens" / f"{name}.ds")
                written += ends[-1]
                described.append({"file": f"tokens/{name}.ds", "split": name.split("-")[0]})
                described[-1] |= {"source": source, "documents": len(rows), "tokens": ends[-1]}
            write_json(folder / "tokens.json", {"token_bytes": 2, "shards": described})
            write_json(folder / "report.json", {})

        return self.commit("packing", write, inputs=inputs)

    def training(self, packing: Node, weights: Row, settings: Row) -> Node:
        """A checkpoint that was trained on token shards."""

        def write(folder: Path) -> None:
            (folder / "losses.jsonl").write_text(json.dumps(self.made))

        return self.commit("training", write, inputs=[packing], content=[weights], settings=settings)


FATES = ("removed", "failed")


def write_table(path: Path, schema: pa.Schema, rows: Sequence[Row]) -> None:
    """A Parquet file as the pipeline writes it."""
    writer = TableWriter(path, schema)
    for row in rows:
        writer.add(row)
    writer.close()


def document(identity: str, source: str = "web", **fields: Any) -> Row:
    """A document of a source, with a text and a URL of its own."""
    return {
        "id": identity,
        "source": source,
        "url": f"https://{source}.example/{identity}",
        "text": f"text of {identity}",
        "file_path": f"{source}.jsonl",
    } | fields


def lost(identity: str, reason: str, value: str = "", fate: str = "removed", **fields: Any) -> Row:
    """A removed (or failed) record."""
    excerpt = fields.pop("text", f"text of {identity}")
    return document(identity, **fields) | {
        "fate": fate,
        "reason": reason,
        "value": value,
        "excerpt": excerpt,
    }


def clusters(*members: Row) -> Callable[[Path], None]:
    """Writes a table of clusters into an output."""
    return lambda folder: write_table(folder / "clusters" / "clusters.parquet", CLUSTER_SCHEMA, members)


@pytest.fixture
def hand(home: Path) -> HandMade:
    """An empty data folder to build outputs and runs in."""
    return HandMade(home)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Rows, tables and data folders: `document`, `lost`, `clusters`, `table`, `hand`."""
    return SimpleNamespace(document=document, lost=lost, clusters=clusters, table=write_table, hand=HandMade)


@pytest.fixture
def tiny_ledger(tiny_run: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of the session's tiny run."""
    monkeypatch.setenv("TOKENMILL_HOME", str(tiny_run.home))
    return Ledger(tiny_run.record, Store(tiny_run.home / "store"))
