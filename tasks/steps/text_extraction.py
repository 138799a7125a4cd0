"""Text extraction: the main text of a page, from the payload of its record."""

import re
from collections.abc import Iterator
from typing import Any

import cchardet
from datatrove.data import Document
from datatrove.pipeline.extractors import Trafilatura

from pipeline_config.curation import TextExtraction
from tasks.steps.page_sandbox import PageFailed, PageSandbox
from tasks.steps.record_ranges import PAYLOAD
from tasks.steps.shards import DecidingStep, Fate, failed, removed

META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE)
HEADER_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE)
META_BYTES = 2048


def decode_page(payload: bytes, content_type: str = "") -> str | None:
    """The page as text, or None where no character set fits.

    UTF-8 where the bytes allow it, else what detection says, as DataTrove does; where detection is of no
    help, what the HTTP header or the page's own meta tag declares.
    """
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and not payload[: error.start].isascii():
            return payload[: error.start].decode("utf-8")  # cut inside its last character
    declared = [match.group(1) for match in [HEADER_CHARSET.search(content_type)] if match]
    declared += [match.group(1).decode() for match in [META_CHARSET.search(payload[:META_BYTES])] if match]
    for charset in [cchardet.detect(payload)["encoding"], *declared]:
        try:
            return payload.decode(charset or "utf-8")
        except (UnicodeError, LookupError):
            continue
    return None


def extract_text(page: tuple[bytes, str], engine: Trafilatura) -> tuple[str, str]:
    """(`text`, main text), or (`undecodable` | `no_text`, "") where there is none."""
    html = decode_page(*page)
    if html is None:
        return "undecodable", ""
    text = engine.extract(html)
    return ("text", text) if text else ("no_text", "")


class ExtractText(DecidingStep):
    """Fills in a document's text by DataTrove's Trafilatura block, one page at a time in a sandbox.

    Trafilatura's own deduplication is off: it makes a text depend on the pages before it.
    """

    name = "trafilatura"

    def __init__(self, settings: TextExtraction):
        super().__init__()
        self.settings = settings

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        engine = Trafilatura(favour_precision=self.settings.favour_precision, deduplicate=False)
        engine.extract("<html><body><p>Loads the engine once, before children are forked.</p></body></html>")
        self.sandbox = PageSandbox(
            lambda page: extract_text(page, engine),
            self.settings.page_cpu_seconds,
            self.settings.page_memory_bytes,
        )
        try:
            yield from super().run(data, rank, world_size)
        finally:
            self.sandbox.close()

    def decide(self, document: Document) -> Fate | None:
        try:
            outcome, text = self.sandbox(document.metadata.pop(PAYLOAD))
        except PageFailed as failure:
            reason = str(failure)
            return failed(reason.split(":")[0], reason)
        if outcome == "undecodable":
            return failed("undecodable", "no character set fits")
        if outcome == "no_text":
            return removed("no_text")
        document.text = text
        document.metadata["extractor"] = "trafilatura"
        return None
