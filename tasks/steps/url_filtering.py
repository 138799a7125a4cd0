"""URL filtering: reads record headers, decides by payload type and URL, and keeps a pointer to the record."""

import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
from datatrove.data import Document
from datatrove.pipeline.filters import URLFilter
from fastwarc.warc import ArchiveIterator, WarcRecordType
from tldextract import TLDExtract

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SourceError, may_pass, reading_error
from tasks.steps.shards import DecidingStep, Fate, ReadShard, removed

DOCUMENT_RECORDS = (WarcRecordType.response, WarcRecordType.resource, WarcRecordType.revisit)
GZIP_MAGIC = b"\x1f\x8b"
OTHER_MAGIC = {b"\x04\x22\x4d\x18": "LZ4", b"\x28\xb5\x2f\xfd": "zstd"}


def read_pointers(uri: str) -> Iterator[dict[str, Any]]:
    """Header fields, offset and length of every document record of a WARC file; no payload is decoded.

    Raises:
        SourceError: the file is missing, not a WARC, damaged, cut off, or without document records.
        UnreachableError: the storage does not answer.
    """
    found, pending, records = 0, None, 0
    try:
        with fsspec.open(uri, "rb") as file:
            for record in ArchiveIterator(file, parse_http=False):
                records += 1
                if pending:
                    yield pending | {"warc_length": record.stream_pos - pending["warc_offset"]}
                    found += 1
                last = record.stream_pos
                pending = _pointer(record) if record.record_type in DOCUMENT_RECORDS else None
        if records:
            end = _end_of_last_record(uri, last)
            if pending:
                yield pending | {"warc_length": end - pending["warc_offset"]}
                found += 1
    except Exception as error:
        not_a_warc = isinstance(error, OSError) and error.errno is None
        if not_a_warc or isinstance(error, FileNotFoundError) or may_pass(error):
            raise reading_error(error, uri, _not_a_warc(uri, records, error)) from None
        raise
    if not records:
        raise SourceError(f"{uri} is not a WARC file: it holds no record")
    if not found:
        raise SourceError(f"{uri} holds {records} WARC records, but no response record")


def _pointer(record: Any) -> dict[str, Any]:
    headers = record.headers
    return {
        "id": headers.get("WARC-Record-ID", "").strip("<>"),
        "url": headers.get("WARC-Target-URI", "").strip("<>"),
        "date": headers.get("WARC-Date", ""),
        "payload_digest": headers.get("WARC-Payload-Digest", ""),
        "payload_type": headers.get("WARC-Identified-Payload-Type", ""),
        "record_type": headers.get("WARC-Type", ""),
        "warc_offset": record.stream_pos,
    }


def _not_a_warc(uri: str, records: int, error: Exception) -> str:
    if records:
        return f"{uri} is damaged after record {records}: {error}. Fetch it again"
    return f"{uri} is not a WARC file: {error}"


def _end_of_last_record(uri: str, offset: int) -> int:
    """Where the last record ends.

    FastWARC stops silently at the end of a cut file, so the last record is read once more.
    """
    with fsspec.open(uri, "rb") as file:
        file.seek(offset)
        head = file.read(2)
        file.seek(offset)
        if head == GZIP_MAGIC:
            return offset + _gzip_member_length(file, uri, offset)
        file.seek(0)
        magic = file.read(4)
        if magic in OTHER_MAGIC:
            raise SourceError(
                f"{uri} is compressed with {OTHER_MAGIC[magic]}; WARC files are read plain or with gzip"
            )
        if magic[:2] == GZIP_MAGIC:
            raise SourceError(
                f"{uri} is compressed as a whole, so its records cannot be read one by one: "
                "compress each record, for example with `warcio recompress`"
            )
        return offset + _plain_record_length(file, uri, offset)


def _gzip_member_length(file: Any, uri: str, offset: int) -> int:
    member, length = zlib.decompressobj(zlib.MAX_WBITS | 16), 0
    while not member.eof:
        chunk = file.read(1 << 20)
        if not chunk:
            raise SourceError(f"{uri} is cut off in its last record, at offset {offset}. Fetch it again")
        length += len(chunk)
        member.decompress(chunk)
    if member.unused_data or file.read(1):
        raise SourceError(
            f"{uri} is cut off or damaged after offset {offset + length - len(member.unused_data)}: "
            "what follows is no complete record. Fetch it again"
        )
    return length - len(member.unused_data)


def _plain_record_length(file: Any, uri: str, offset: int) -> int:
    file.seek(offset)
    data = file.read()
    head, separator, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.split(b":", 1)[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    if not separator or not lengths or len(body) < lengths[0]:
        raise SourceError(f"{uri} is cut off in its last record, at offset {offset}. Fetch it again")
    return len(data)


class ReadPointers(ReadShard):
    """Yields the records of a WARC file, as documents without text."""

    name = "record headers"

    def __init__(self, shards: Sequence[str], paths: Sequence[str], source: str, dump: str):
        super().__init__(shards)
        self.path_of = dict(zip(shards, paths, strict=True))
        self.fields = {"source": source, "dump": dump}

    def read(self, shard: str) -> Iterator[Document]:
        path = self.path_of[shard]
        for pointer in read_pointers(shard):
            identity = pointer.pop("id") or f"{path}#{pointer['warc_offset']}"
            yield Document(text="", id=identity, metadata=pointer | self.fields | {"file_path": path})


class FilterUrls(DecidingStep):
    """Decides by record type, payload type and DataTrove's URL filter."""

    name = "URL filter"

    def __init__(self, settings: UrlFiltering):
        super().__init__()
        self.settings = settings

    def decide(self, document: Document) -> Fate | None:
        record_type = document.metadata.get("record_type")
        if record_type == "revisit":
            return removed("revisit", "the page is unchanged since an earlier record")
        payload_type = document.metadata.get("payload_type")
        if payload_type and payload_type not in self.settings.payload_types:
            return removed("payload_type", payload_type)
        url = document.metadata.get("url")
        if not url:
            return removed("no_url")
        verdict = url_filter(self.settings).filter(document)
        if verdict is True:
            return None
        return removed(verdict[1], url)


@functools.lru_cache(maxsize=1)
def url_filter(settings: UrlFiltering) -> URLFilter:
    """DataTrove's filter, loaded once per process, and kept off the network."""
    block = URLFilter(
        soft_word_threshold=settings.soft_word_threshold,
        extra_domains=settings.extra_domains or None,
        use_integrated_lists=settings.use_integrated_lists,
    )
    block.tldextractor = TLDExtract(suffix_list_urls=(), cache_dir=None)
    return block
