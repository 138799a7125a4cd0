"""Shards of documents: read one, give every record one fate, write one.

A stage's pipeline is `[ReadShard, ...deciding steps..., WriteShard]`. Deciding steps never drop a record:
they mark it, and `WriteShard` sends it to `documents/` or to `removed/`, so that
read = kept + removed + failed can be checked.
"""

import json
import multiprocessing
import os
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep

from pipeline_config.errors import TokenmillError
from pipeline_config.processes import die_with_parent

FATE, COUNTS, NOTES = "_fate", "_counts", "_notes"  # metadata that steps hand to the writer
ROWS_PER_GROUP = 1000
ZSTD_LEVEL = 3
EXCERPT_CHARACTERS = 200
COUNT_SECONDS = 1.0

POINTER_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("warc_offset", pa.int64()),
        ("warc_length", pa.int64()),
        ("payload_digest", pa.string()),
        ("source", pa.string()),
    ]
)
DOCUMENT_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
        ("warc_offset", pa.int64()),
        ("warc_length", pa.int64()),
        ("payload_digest", pa.string()),
        ("extractor", pa.string()),
        ("source", pa.string()),
    ]
)
REMOVED_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("source", pa.string()),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("value", pa.string()),
        ("dump", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("warc_offset", pa.int64()),
        ("warc_length", pa.int64()),
        ("payload_digest", pa.string()),
        ("excerpt", pa.string()),
    ]
)


ANNOTATION_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("file_path", pa.string()),
        ("warc_offset", pa.int64()),
        ("fate", pa.string()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class Fate:
    """Why a record goes no further: `removed` by a rule, or `failed` with an error."""

    kind: str
    reason: str
    value: str = ""


def removed(reason: str, value: object = "") -> Fate:
    """The fate of a record that a rule removes; `value` is what the rule looked at."""
    return Fate("removed", reason, str(value))


def failed(reason: str, value: object = "") -> Fate:
    """The fate of a record that could not be processed."""
    return Fate("failed", reason, str(value)[:1000])


class ReadShard(PipelineStep):
    """Yields the documents of the shard that belongs to the rank."""

    type, name = "READ", "shard"

    def __init__(self, shards: Sequence[str]):
        super().__init__()
        self.shards = list(shards)

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        join_parent()
        yield from self.read(self.shards[rank])

    def read(self, shard: str) -> Iterator[Document]:
        """The documents of one Parquet file, in order."""
        return read_documents(shard)


class DecidingStep(PipelineStep):
    """Gives documents a fate. Subclasses implement `decide`."""

    type = "DECIDE"

    @abstractmethod
    def decide(self, document: Document) -> Fate | None:
        """None to keep the document (perhaps changed), else why it goes no further."""

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        for document in data:
            if FATE not in document.metadata:
                fate = self._decide_safely(document)
                if fate is not None:
                    document.metadata[FATE] = fate
            yield document

    def _decide_safely(self, document: Document) -> Fate | None:
        try:
            return self.decide(document)
        except TokenmillError:
            raise
        except Exception as error:
            return failed(f"error:{type(error).__name__}", error)


class WriteShard(PipelineStep):
    """Writes kept documents and removed records, and the shard's counts when both are whole.

    Args:
        notes: fields that the deciding steps hand over in `NOTES`: a row of `annotations/` for every record,
            kept or not, in the order in which they were read. Without fields there is no such table.
    """

    type, name = "WRITE", "shard"

    def __init__(
        self,
        folder: str,
        schema: pa.Schema = DOCUMENT_SCHEMA,
        route: Callable[[Document], str] | None = None,
        routes: Sequence[str] = ("part",),
        notes: Sequence[pa.Field] = (),
    ):
        super().__init__()
        self.folder = folder
        self.notes = tuple(notes)
        self.schema = schema
        self.route = route
        self.routes = tuple(routes)

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        folder = Path(self.folder)
        counts = ShardCounts()
        kept = {
            route: TableWriter(folder / "documents" / f"{route}-{rank:05d}.parquet", self.schema)
            for route in self.routes
        }
        lost = TableWriter(folder / "removed" / f"part-{rank:05d}.parquet", REMOVED_SCHEMA)
        notes = self._notes_writer(rank)
        for document in data:
            fate = document.metadata.get(FATE) or _unwritable(document)
            counts.add(fate, document)
            if notes:
                notes.add(annotation_row(document, fate))
            if fate is None:
                route = self.route(document) if self.route else self.routes[0]
                kept[route].add({"text": document.text, "id": document.id, **document.metadata})
            else:
                lost.add(removed_row(document, fate))
            yield document
        for writer in [*kept.values(), lost, *([notes] if notes else [])]:
            writer.close()
        counts.write(folder / "shards" / f"{rank:05d}.json")

    def _notes_writer(self, rank: int) -> "TableWriter | None":
        if not self.notes:
            return None
        schema = pa.schema([*ANNOTATION_SCHEMA, *self.notes])
        return TableWriter(Path(self.folder) / "annotations" / f"part-{rank:05d}.parquet", schema)


class CountDocuments(PipelineStep):
    """Writes down how many documents came this far, about once a second, for others to read."""

    type, name = "COUNT", "documents"

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        path = Path(self.folder) / f"{rank:05d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        number, due = 0, time.monotonic() + COUNT_SECONDS
        for number, document in enumerate(data or (), start=1):
            if time.monotonic() >= due:
                path.write_text(str(number), "ascii")
                due = time.monotonic() + COUNT_SECONDS
            yield document
        path.write_text(str(number), "ascii")


class ShardCounts:
    """The books of one shard."""

    def __init__(self) -> None:
        self.read = self.kept = self.text_bytes = 0
        self.removed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.measures: Counter[str] = Counter()

    def add(self, fate: Fate | None, document: Document) -> None:
        """Enters one record."""
        self.read += 1
        if fate is None:
            self.kept += 1
            self.text_bytes += len(document.text.encode())
            self.measures.update(document.metadata.get(COUNTS, {}))
        else:
            (self.removed if fate.kind == "removed" else self.failed)[fate.reason] += 1

    def write(self, path: Path) -> None:
        """Writes the books; a shard with books is a finished shard."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(vars(self)), "utf-8")
        os.replace(temporary, path)


class TableWriter:
    """Writes rows to a Parquet file that appears under its name when it is whole.

    The same rows give the same bytes: fixed row groups, one compression, no timestamps.
    """

    def __init__(self, path: Path, schema: pa.Schema):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.schema = schema
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}")
        self.rows: list[dict[str, Any]] = []
        self.writer = pq.ParquetWriter(
            self.temporary, schema, compression="zstd", compression_level=ZSTD_LEVEL
        )

    def add(self, row: dict[str, Any]) -> None:
        """Adds a row; fields that the schema does not have are left out, missing ones are null."""
        self.rows.append({name: row.get(name) for name in self.schema.names})
        if len(self.rows) >= ROWS_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        """Writes what is left and gives the file its name."""
        if self.rows:
            self._write_group()
        self.writer.close()
        os.replace(self.temporary, self.path)

    def _write_group(self) -> None:
        self.writer.write_table(pa.Table.from_pylist(self.rows, schema=self.schema))
        self.rows = []


def read_documents(path: str | Path) -> Iterator[Document]:
    """The documents of a Parquet file, a row group at a time. Null fields are left out."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group).to_pylist():
                yield Document(
                    text=row.pop("text", None) or "",
                    id=row.pop("id"),
                    metadata={name: value for name, value in row.items() if value is not None},
                )


def join_parent() -> None:
    """Lets a worker die with the process that started it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        die_with_parent(parent.pid)


def _unwritable(document: Document) -> Fate | None:
    for name, value in {"text": document.text, "id": document.id, **document.metadata}.items():
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                return failed("not_unicode", f"{name}: lone surrogate at character {error.start}")
    return None


def removed_row(document: Document, fate: Fate) -> dict[str, Any]:
    """A row of the table of what was removed or failed."""
    row = {"id": document.id, "excerpt": document.text[:EXCERPT_CHARACTERS], **document.metadata}
    row |= {"fate": fate.kind, **{k: v for k, v in asdict(fate).items() if k != "kind"}}
    return _writable(row)


def annotation_row(document: Document, fate: Fate | None) -> dict[str, Any]:
    """A row of the table of what a stage found out about its records."""
    row = {"id": document.id, **document.metadata, **document.metadata.get(NOTES, {})}
    row |= {"fate": fate.kind, "reason": fate.reason} if fate else {"fate": "kept"}
    return _writable(row)


def _writable(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in row.items()}
