"""URL filtering: reads record headers, decides by payload type and URL, and keeps a pointer to the record."""

import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec
import pyarrow as pa
from datatrove.data import Document
from fastwarc.warc import ArchiveIterator, WarcRecordType

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SettingsError, SourceError, may_pass, reading_error
from tasks.steps.canonical_urls import canonical_url, split_url
from tasks.steps.shards import NOTES, DecidingStep, Fate, ReadShard, removed
from tasks.steps.url_lists import UrlList, domain_entry, domains_of, load_lists
from tasks.steps.url_rules import domain_parser, url_rules

NOTED = [pa.field("canonical_url", pa.string())]  # of each record

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
    """Decides by record type, HTTP status, payload type, and the rules and lists for URLs.

    What an allow list means passes all rules for URLs. Notes the URL's one spelling.
    """

    name = "URL filter"

    def __init__(self, settings: UrlFiltering, lists: Sequence[UrlList] = ()):
        super().__init__()
        self.settings = settings
        self.allowed = tuple(found for found in lists if found.use == "allow")
        self.blocked = tuple(found for found in lists if found.use == "block")

    def prepare(self) -> None:
        """Makes the compact lists where they are not there yet.

        Raises:
            SettingsError: a list holds what it cannot.
        """
        listed_domains(self.settings.extra_domains)
        for lists in (self.allowed, self.blocked):
            load_lists(lists)
        if self.settings.use_integrated_lists:
            url_rules(self.settings.soft_word_threshold)

    def decide(self, document: Document) -> Fate | None:
        found = document.metadata
        url = found.get("url")
        document.metadata.setdefault(NOTES, {})["canonical_url"] = canonical_url(url) if url else None
        if found.get("record_type") == "revisit":
            return removed("revisit", "the page is unchanged since an earlier record")
        status = found.get("http_status")
        if status is not None and self.settings.http_statuses and status not in self.settings.http_statuses:
            return removed("http_status", status)
        payload_type = found.get("payload_type")
        if payload_type and payload_type not in self.settings.payload_types:
            return removed("payload_type", payload_type)
        if not url:
            return removed("no_url")
        return self._decide_by_url(url)

    def _decide_by_url(self, url: str) -> Fate | None:
        listed = self.allowed or self.blocked or self.settings.extra_domains
        parts = split_url(url) if listed else None
        if self.allowed and load_lists(self.allowed).match(url, parts):
            return None
        if parts and (fate := self._extra_domain(parts.host)):
            return fate
        if self.blocked and (match := load_lists(self.blocked).match(url, parts)):
            return removed(f"blocklist:{match.list_name}", match.entry)
        if not self.settings.use_integrated_lists:
            return None
        verdict = url_rules(self.settings.soft_word_threshold).verdict(url)
        return removed(*verdict) if verdict else None

    def _extra_domain(self, host: str) -> Fate | None:
        domains = listed_domains(self.settings.extra_domains)
        entry = next((name for name in domains_of(host) if name in domains), None)
        if entry is None:
            return None
        registered = domain_parser()(f"http://{entry}").top_domain_under_public_suffix
        return removed("domain" if registered in ("", entry) else "subdomain", entry)


@functools.lru_cache(maxsize=4)
def listed_domains(domains: tuple[str, ...]) -> frozenset[str]:
    """The domains of a setting, each in its one spelling.

    Raises:
        SettingsError: one of them is no domain and no address.
    """
    for domain in domains:
        if domain_entry(domain) is None:
            raise SettingsError(
                f"url_filtering.extra_domains: {domain!r} is no domain or address: give a host name such as "
                "example.com, without a path"
            )
    return frozenset(domain_entry(domain) or "" for domain in domains)
