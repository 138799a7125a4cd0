"""Pointers to the records of a crawl's files: what their heads say, where they lie; no payload is decoded."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
import pyarrow as pa
from datatrove.data import Document

from pipeline_config.errors import SourceError, may_pass, reading_error
from tasks.steps.record_heads import PAGE_KINDS, Head, HttpHead
from tasks.steps.shards import FATE, NOTES, ReadShard, failed, removed
from tasks.steps.warc_records import declared_type, truncation
from tasks.steps.warc_walk import NOT_SEPARABLE, Found, walk

HTTP_HEAD = "_http_head"  # metadata: the record's `HttpHead`, for the steps of the same stage
CONVERSION = "conversion"
POINTER_NOTES = (
    pa.field("record_type", pa.string()),
    pa.field("http_status", pa.int32()),
    pa.field("mime", pa.string()),
    pa.field("payload_type", pa.string()),
    pa.field("truncated", pa.string()),
)


def read_pointers(uri: str) -> Iterator[dict[str, Any]]:
    """Of each page of a WARC or ARC file: fields, offset, length, `NOTES` and `HTTP_HEAD`.

    What is damaged, cut off or cannot be read alone has a failed `FATE`.

    Raises:
        SourceError: the file is missing, or holds no record at all.
        UnreachableError: the storage does not answer.
    """
    held: list[dict[str, Any]] = []
    is_archive = False
    try:
        with fsspec.open(uri, "rb") as file:
            for found in walk(file, _size(file, uri)):
                if not is_archive and found.head is not None:
                    is_archive = True
                    yield from held
                pointer = _pointer(found)
                if pointer and is_archive:
                    yield pointer
                elif pointer:
                    held.append(pointer)
    except Exception as error:
        not_an_archive = isinstance(error, OSError) and error.errno is None
        if not_an_archive or isinstance(error, FileNotFoundError) or may_pass(error):
            raise reading_error(error, uri, f"cannot read {uri}: {error}") from None
        raise
    if not is_archive:
        raise SourceError(f"{uri} is not a WARC file: it holds no record")


def _size(file: Any, uri: str) -> int:
    try:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
    except ValueError:
        raise SourceError(
            f"{uri} cannot be read in ranges, so that no record could be read by itself: "
            "copy the file, or serve it with Range support"
        ) from None
    return size


def _pointer(found: Found) -> dict[str, Any] | None:
    """The pointer to what was found; None for a whole record that is no page."""
    head = found.head or Head(b"")
    may_be_a_page = found.failure is not None and found.failure[0] != NOT_SEPARABLE
    if not may_be_a_page and head.kind not in (*PAGE_KINDS, CONVERSION):
        return None
    pointer = {
        "id": head.get("warc-record-id").strip("<>"),
        "url": head.get("warc-target-uri").strip("<>"),
        "date": head.get("warc-date"),
        "payload_digest": head.get("warc-payload-digest"),
        "payload_type": head.get("warc-identified-payload-type"),
        "record_type": head.kind,
        "warc_offset": found.offset,
        "warc_length": found.length,
        NOTES: _notes(head, found.http),
        HTTP_HEAD: found.http,
    }
    if found.failure:
        pointer[FATE] = failed(*found.failure)
    elif head.kind == CONVERSION:
        pointer[FATE] = removed(CONVERSION, "made from another record")
    return pointer


def _notes(head: Head, http: HttpHead | None) -> dict[str, Any]:
    mime = declared_type(head, http).partition(";")[0].strip().lower()
    return {"http_status": http and http.status, "mime": mime or None, "truncated": truncation(head) or None}


class ReadPointers(ReadShard):
    """Yields the pages of a WARC or ARC file, as documents without text."""

    name = "record heads"

    def __init__(self, shards: Sequence[str], paths: Sequence[str], source: str, dump: str):
        super().__init__(shards)
        self.path_of = dict(zip(shards, paths, strict=True))
        self.fields = {"source": source, "dump": dump}

    def read(self, shard: str) -> Iterator[Document]:
        path = self.path_of[shard]
        for pointer in read_pointers(shard):
            identity = pointer.pop("id") or f"{path}#{pointer['warc_offset']}"
            yield Document(text="", id=identity, metadata=pointer | self.fields | {"file_path": path})
