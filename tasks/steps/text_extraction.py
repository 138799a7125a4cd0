"""Text extraction: the main text of a page, from the record that a pointer names."""

import io
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa
from datatrove.data import Document
from fastwarc.warc import ArchiveIterator

from pipeline_config.curation import TextExtraction
from pipeline_config.errors import SourceError
from tasks.steps.charset import decode_page
from tasks.steps.extractors import Engine, ForeignLanguage, engine_for, lines
from tasks.steps.page_limits import excess
from tasks.steps.page_sandbox import PageFailed, PageSandbox
from tasks.steps.shards import FATE, NOTES, DecidingStep, Fate, ReadShard, failed, read_documents, removed

PAYLOAD, FOUND = "_payload", "_found"
BATCH_PAGES, BATCH_BYTES = 16, 2_000_000  # a message to the sandbox: enough to make its cost small
WARM_UP = "<html><body><p>Loads an engine once, before children are forked.</p></body></html>"
NOTED = (
    pa.field("extractor", pa.string()),
    pa.field("charset", pa.string()),
    pa.field("charset_found_by", pa.string()),
    pa.field("html_bytes", pa.int64()),
    pa.field("text_characters", pa.int64()),
)
"""What is noted about every page, kept or not."""


def read_record(data: bytes) -> tuple[bytes, str]:
    """Decoded payload and Content-Type of the one HTTP response record in `data`.

    Raises:
        ValueError: the bytes are no HTTP response record.
    """
    for record in ArchiveIterator(io.BytesIO(data), parse_http=True, auto_decode="all"):
        content_type = record.http_headers.get("Content-Type", "") if record.http_headers else ""
        return record.reader.read(), content_type
    raise ValueError("no WARC record at this offset")


class ReadRecords(ReadShard):
    """Yields pointers with their record's payload, reading each file from front to back."""

    name = "records"

    def __init__(self, shards: list[str], uris: dict[str, str], max_payload_bytes: int):
        super().__init__(shards)
        self.uris = uris
        self.max_payload_bytes = max_payload_bytes

    def read(self, shard: str) -> Iterator[Document]:
        return self.attach(read_documents(shard))

    def attach(self, pointers: Iterable[Document]) -> Iterator[Document]:
        """The pointers with their payloads."""
        opened: str | None = None
        file: Any = None
        try:
            for document in pointers:
                path = document.metadata["file_path"]
                if path != opened:
                    if file is not None:
                        file.close()
                    file, opened = fsspec.open(self.uris[path], "rb").open(), path
                self._attach_payload(document, file)
                yield document
        finally:
            if file is not None:
                file.close()

    def _attach_payload(self, document: Document, file: Any) -> None:
        offset, length = document.metadata["warc_offset"], document.metadata["warc_length"]
        file.seek(offset)
        data = file.read(length)
        if len(data) < length:
            raise SourceError(f"{self.uris[document.metadata['file_path']]} has become shorter than it was")
        try:
            payload, content_type = read_record(data)
        except Exception as error:
            document.metadata[FATE] = failed("unreadable_record", error)
            return
        if len(payload) > self.max_payload_bytes:
            document.metadata[FATE] = failed("payload_too_large", f"{len(payload)} bytes")
            return
        document.metadata[PAYLOAD] = (payload, content_type)


class PageText(NamedTuple):
    """What became of a page in the sandbox."""

    outcome: str
    """`text`, or why there is none: `no_text`, `undecodable`, `language`, a limit's name."""
    text: str = ""
    engine: str = ""
    charset: str = ""
    charset_found_by: str = ""
    value: str = ""


def extract_page(page: tuple[bytes, str], engine: Engine, settings: TextExtraction) -> PageText:
    """The main text of a payload with its content type, within the limits that can be told in advance."""
    decoded = decode_page(*page)
    if decoded is None:
        return PageText("undecodable", value="no text in any character set")
    found = PageText("no_text", charset=decoded.charset, charset_found_by=decoded.found_by)
    if broken := excess(decoded.text, settings):
        return found._replace(outcome=broken[0], value=str(broken[1]))
    try:
        extraction = engine(decoded.text)
    except ForeignLanguage as language:
        return found._replace(outcome="language", value=str(language))
    text = extraction.text.replace("\x00", "").encode("utf-8", "replace").decode()
    if len(text) > settings.max_output_ratio * len(decoded.text):
        return found._replace(outcome="output_ratio", value=f"{len(text)} of {len(decoded.text)} characters")
    if not text.strip():
        return found
    return found._replace(outcome="text", text=text, engine=extraction.engine)


class ExtractText(DecidingStep):
    """Fills in documents' texts, in a sandbox, and notes how each one was found."""

    name = "extract"

    def __init__(self, settings: TextExtraction):
        super().__init__()
        self.settings = settings

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        engines = [engine_for(self.settings)]
        if self.settings.engine in ("blend", "trafilatura") and self.settings.fall_back:
            engines.append(lines)
        for engine in engines:
            engine(WARM_UP)
        self.sandbox = PageSandbox(
            [partial(extract_page, engine=engine, settings=self.settings) for engine in engines],
            self.settings.page_cpu_seconds,
            self.settings.page_memory_bytes,
        )
        try:
            for batch in _batches(data):
                self._extract(batch)
                yield from super().run(batch, rank, world_size)
        finally:
            self.sandbox.close()

    def _extract(self, batch: list[Document]) -> None:
        waiting = [document for document in batch if FATE not in document.metadata]
        pages = [document.metadata.pop(PAYLOAD) for document in waiting]
        for document, page, found in zip(waiting, pages, self.sandbox.map(pages), strict=True):
            document.metadata[FOUND] = found
            notes = document.metadata.setdefault(NOTES, {})
            notes["html_bytes"] = len(page[0])
            # signals of server and page about their use: notes |= signals(headers, page[0][:HEAD_BYTES])

    def decide(self, document: Document) -> Fate | None:
        found = document.metadata.pop(FOUND)
        if isinstance(found, PageFailed):
            reason = str(found)
            return failed(reason.split(":")[0], reason)
        document.metadata[NOTES] |= {
            "charset": found.charset or None,
            "charset_found_by": found.charset_found_by or None,
            "extractor": found.engine or None,
            "text_characters": len(found.text),
        }
        if found.outcome in ("no_text", "language"):
            return removed(found.outcome, found.value)
        if found.outcome != "text":
            return failed(found.outcome, found.value)
        document.text = found.text
        document.metadata["extractor"] = found.engine
        return None


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in batches that are small in number and bytes."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.metadata.get(PAYLOAD, (b"",))[0])
        if len(batch) >= BATCH_PAGES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
