"""Texts that exist already: JSONL (plain or compressed), Parquet, and Hugging Face datasets."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import fsspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document

from pipeline_config.errors import SourceError, error_kind, reading_error
from pipeline_config.settings import FieldMapping, Source
from tasks.steps.shards import FATE, Fate, ReadShard, failed, removed

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
COMPRESSIONS = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
Record = dict[str, Any] | Fate


def read_jsonl(uri: str) -> Iterator[Record]:
    """The records of a JSON-lines file; a line that is not a JSON object is a failure of its own.

    Raises:
        SourceError: the file is missing, empty, cut off or not compressed as its name says.
        UnreachableError: the storage does not answer.
    """
    compression = COMPRESSIONS.get(Path(uri).suffix)
    number = 0
    try:
        with fsspec.open(uri, "rb", compression=None if compression == "zstd" else compression) as file:
            # fsspec's zstd reader has no lines, stops after the first frame and takes a cut file for whole
            lines = (
                io.BufferedReader(pa.CompressedInputStream(file, "zstd")) if compression == "zstd" else file
            )
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse(line, number)
    except Exception as error:
        damage = f"{uri} cannot be read after line {number}: {error!r}"
        raise reading_error(error, uri, damage) from None
    if not number:
        raise SourceError(f"{uri} is empty")


def read_parquet(uri: str) -> Iterator[Record]:
    """The records of a Parquet file, a row group at a time.

    Raises:
        SourceError: the file is missing or not a Parquet file.
        UnreachableError: the storage does not answer.
    """
    try:
        with fsspec.open(uri, "rb") as file, pq.ParquetFile(file) as table:
            for group in range(table.num_row_groups):
                yield from table.read_row_group(group).to_pylist()
    except Exception as error:
        raise reading_error(error, uri, f"{uri} cannot be read as Parquet: {error!r}") from None


def read_dataset(source: Source, rank: int, shards: int) -> Iterator[Record]:
    """The records of a shard of a Hugging Face dataset, streamed.

    Raises:
        SourceError: the dataset, its configuration, split or revision cannot be had.
        UnreachableError: the storage does not answer.
    """
    is_folder = Path(source.dataset).is_dir()
    try:
        stream = datasets.load_dataset(
            source.dataset,
            source.dataset_config,
            split=source.dataset_split,
            revision=None if is_folder else source.revision,
            streaming=True,
        )
        for number, record in enumerate(stream):
            if number % shards == rank:
                yield record
    except Exception as error:
        raise error_kind(error)(
            f"dataset {source.dataset} (revision {source.revision}, split {source.dataset_split}) "
            f"cannot be read: {error!r}"
        ) from None


def reader_of(uri: str) -> str:
    """`jsonl` or `parquet`, by the file's name.

    Raises:
        SourceError: the name tells neither.
    """
    path = Path(uri)
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix
    if suffix in JSONL_SUFFIXES:
        return "jsonl"
    if path.suffix == ".parquet":
        return "parquet"
    raise SourceError(
        f"{uri}: documents are read from .jsonl (also .gz, .xz, .zst) and .parquet files, not from this"
    )


def document_from(record: Record, fields: FieldMapping, identity: str) -> Document:
    """A document of a record; what the record lacks is said as its fate."""
    if isinstance(record, Fate):
        return Document(text="", id=identity, metadata={FATE: record})
    own = record.get(fields.id) if fields.id else None
    metadata: dict[str, Any] = {}
    for name, field in (("url", fields.url), ("date", fields.date)):
        if field and record.get(field) is not None:
            metadata[name] = str(record[field])
    text = record.get(fields.text)
    if text is None:
        names = ", ".join(sorted(map(str, record)))[:200]
        metadata[FATE] = failed("no_text_field", f"no field {fields.text!r}; the record has: {names}")
    elif not isinstance(text, str):
        metadata[FATE] = failed("text_is_no_string", type(text).__name__)
    elif not text.strip():
        metadata[FATE] = removed("empty")
    return Document(
        text=text if isinstance(text, str) else "",
        id=identity if own is None else str(own),
        metadata=metadata,
    )


class ReadDocuments(ReadShard):
    """Yields the documents of a file, or of a shard of a dataset, with FineWeb's field names."""

    name = "documents"

    def __init__(self, source: Source, uris: list[str], paths: list[str]):
        super().__init__(uris or [f"{source.dataset}#{n}" for n in range(source.dataset_shards)])
        self.source = source
        self.paths = paths or self.shards

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        self.rank = rank
        yield from super().run(data, rank, world_size)

    def read(self, shard: str) -> Iterator[Document]:
        path = self.paths[self.rank]
        for number, record in enumerate(self._records(shard)):
            document = document_from(record, self.source.fields, f"{self.source.name}/{path}/{number}")
            document.metadata |= {"source": self.source.name, "dump": self.source.dump, "file_path": path}
            if FATE not in document.metadata:
                document.metadata["payload_digest"] = _text_digest(document.text)
            yield document

    def _records(self, shard: str) -> Iterator[Record]:
        if self.source.dataset:
            return read_dataset(self.source, self.rank, self.source.dataset_shards)
        return read_jsonl(shard) if reader_of(shard) == "jsonl" else read_parquet(shard)


def _parse(line: bytes, number: int) -> Record:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return failed("not_json", f"line {number}: {error}")
    if not isinstance(record, dict):
        return failed("not_an_object", f"line {number}: {type(record).__name__}")
    return record


def _text_digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
