"""Pointers to the records of a crawl's files: what their heads say, where they lie; no payload is decoded."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
import pyarrow as pa
from datatrove.data import Document

from pipeline_config.errors import SourceError, may_pass, reading_error
from tasks.steps.shards import FATE, NOTES, Fate, ReadShard, failed, removed
from tasks.steps.warc.heads import ARC_FILE_HEAD, PAGE_KINDS, Head, HttpHead
from tasks.steps.warc.records import declared_type, truncation
from tasks.steps.warc.walk import DAMAGED, NOT_SEPARABLE, Found, walk

HTTP_HEAD = "_http_head"  # metadata: the record's `HttpHead`, for the steps of the same stage
CONVERSION = "conversion"
COMPANIONS = frozenset({"warcinfo", "request", "metadata", "continuation", ARC_FILE_HEAD})
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
            for found in walk(file, _size(file)):
                if not is_archive and found.head is not None:
                    is_archive = True
                    yield from held
                pointer = _pointer(found)
                if pointer and is_archive:
                    yield pointer
                elif pointer:
                    held.append(pointer)
    except Exception as error:
        unusable = isinstance(error, ValueError) or (isinstance(error, OSError) and error.errno is None)
        if unusable or isinstance(error, FileNotFoundError) or may_pass(error):
            raise reading_error(error, uri, f"cannot read {uri}: {error}") from None
        raise
    if not is_archive:
        raise SourceError(f"{uri} is not a WARC file: it holds no record")


def _size(file: Any) -> int:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return size


def _pointer(found: Found) -> dict[str, Any] | None:
    """The pointer to what was found; None for a whole record that is no page."""
    head = found.head or Head(b"")
    may_be_a_page = found.failure is not None and found.failure[0] != NOT_SEPARABLE
    if head.kind in COMPANIONS and not may_be_a_page:
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
    elif head.kind not in PAGE_KINDS:
        pointer[FATE] = _fate_of_no_page(head)
    return pointer


def _fate_of_no_page(head: Head) -> Fate:
    if head.kind == CONVERSION:
        return removed(CONVERSION, "made from another record")
    return removed("record_type", head.kind) if head.kind else failed(DAMAGED, "a record without WARC-Type")


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
            pointer.update(self.fields, file_path=path)
            yield Document(text="", id=identity, metadata=pointer)
