"""The records that pointers name, read in ranges: neighbours together, distant ones by themselves."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from datatrove.data import Document
from fsspec.core import url_to_fs

from pipeline_config.errors import SourceError, error_kind
from tasks.steps.shards import FATE, NOTES, ReadShard, failed, read_documents
from tasks.steps.warc.heads import MAX_HEAD_BYTES
from tasks.steps.warc.payload import Limits, RecordFailed
from tasks.steps.warc.pointers import HTTP_HEAD
from tasks.steps.warc.records import Record, read_record

PAYLOAD = "_payload"  # metadata: (payload, Content-Type) for the step that extracts
MAX_GAP_BYTES = 256 << 10  # what lies between two records, if reading it is cheaper than another request
MAX_RANGE_BYTES = 8 << 20
RANGE_NOT_SATISFIABLE = 416
RECORD_NOTES = (
    pa.field("payload_bytes", pa.int64()),
    pa.field("truncated", pa.string()),
    pa.field("payload_problems", pa.string()),
)


def read_range(uri: str, start: int, end: int) -> bytes:
    """The bytes of a file from `start` to `end`, by one request.

    Raises:
        SourceError: the file is missing or too short, or its server does not serve ranges.
        UnreachableError: the storage does not answer.
    """
    fs, path = url_to_fs(uri)
    try:
        data = fs.cat_file(path, start=start, end=end)
    except Exception as error:
        if getattr(error, "status", None) == RANGE_NOT_SATISFIABLE:
            raise SourceError(f"{uri} has become shorter than it was") from None
        raise error_kind(error)(f"cannot read bytes {start} to {end} of {uri}: {error!r}") from None
    if len(data) > end - start:
        raise SourceError(f"the server of {uri} does not serve ranges: copy the file, or serve it with them")
    if len(data) < end - start:
        raise SourceError(f"{uri} has become shorter than it was")
    return data


def in_ranges(pointers: Iterable[Document]) -> Iterator[tuple[int, int, list[Document]]]:
    """(start, end, pointers) of ranges to read: what follows each other closely in a file goes together."""
    group: list[Document] = []
    start = end = 0
    for pointer in pointers:
        offset, length = pointer.metadata["warc_offset"], pointer.metadata["warc_length"]
        joins = (
            group
            and pointer.metadata["file_path"] == group[0].metadata["file_path"]
            and start <= offset <= end + MAX_GAP_BYTES
            and offset + length - start <= MAX_RANGE_BYTES
        )
        if not joins:
            if group:
                yield start, end, group
            group, start, end = [], offset, offset
        group.append(pointer)
        end = max(end, offset + length)
    if group:
        yield start, end, group


class ReadRecords(ReadShard):
    """Yields pointers with their record's payload, reading each file from front to back."""

    name = "records"

    def __init__(self, shards: list[str], uris: dict[str, str], limits: Limits):
        super().__init__(shards)
        self.uris = uris
        self.limits = limits

    def read(self, shard: str) -> Iterator[Document]:
        return self.attach(read_documents(shard))

    def attach(self, pointers: Iterable[Document]) -> Iterator[Document]:
        """The pointers with their payloads."""
        for start, end, group in in_ranges(pointers):
            data: bytes | None = None
            if len(group) > 1 or end - start <= self.limits.max_bytes + MAX_HEAD_BYTES:
                data = read_range(self.uris[group[0].metadata["file_path"]], start, end)
            for document in group:
                self._attach(document, data, start)
                yield document

    def _attach(self, document: Document, data: bytes | None, start: int) -> None:
        offset, length = document.metadata["warc_offset"] - start, document.metadata["warc_length"]
        if data is None:
            document.metadata[FATE] = failed("payload_too_large", f"a record of {length} bytes")
            return
        try:
            record = read_record(data[offset : offset + length], self.limits)
        except RecordFailed as error:
            document.metadata[FATE] = failed(error.reason, error.value)
            return
        document.metadata.setdefault(NOTES, {}).update(_notes(record))
        document.metadata[PAYLOAD] = (record.payload, record.content_type)
        document.metadata[HTTP_HEAD] = record.http


def _notes(record: Record) -> dict[str, Any]:
    return {
        "payload_bytes": len(record.payload),
        "truncated": record.truncated or None,
        "payload_problems": "; ".join(record.problems) or None,
    }
