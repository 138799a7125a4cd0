"""Text extraction: the main text of a page, from the payload of its record."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from datatrove.data import Document

from pipeline_config.curation import TextExtraction
from tasks.steps.pages.charset import decode_page
from tasks.steps.pages.extractors import Engine, ForeignLanguage, engine_for, lines
from tasks.steps.pages.limits import excess
from tasks.steps.pages.sandbox import PageFailed, PageSandbox
from tasks.steps.shards import FATE, NOTES, DecidingStep, Fate, failed, removed
from tasks.steps.urls.signals import HEAD_CHARACTERS, note_signals
from tasks.steps.warc.pointers import HTTP_HEAD
from tasks.steps.warc.ranges import PAYLOAD

FOUND = "_found"  # metadata: what came back from the sandbox
BATCH_PAGES, BATCH_BYTES = 16, 2_000_000  # a message to the sandbox: enough to make its cost small
WARM_UP = "<html><body><p>Loads an engine once, before children are forked.</p></body></html>"
TEXT_NOTES = (
    pa.field("extractor", pa.string()),
    pa.field("charset", pa.string()),
    pa.field("charset_found_by", pa.string()),
    pa.field("text_characters", pa.int64()),
)
"""What is noted about every page, kept or not."""


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
        """Hands the sandbox the pages of a batch that their owners do not keep back."""
        for document in batch:
            if FATE not in document.metadata and (fate := self._heed_signals(document)):
                document.metadata[FATE] = fate
        waiting = [document for document in batch if FATE not in document.metadata]
        results = self.sandbox.map([document.metadata[PAYLOAD] for document in waiting])
        for document, found in zip(waiting, results, strict=True):
            document.metadata[FOUND] = found
        for document in batch:
            document.metadata.pop(PAYLOAD, None)

    def _heed_signals(self, document: Document) -> Fate | None:
        head = document.metadata.pop(HTTP_HEAD, None)
        headers = head.pairs() if head else ()
        html = document.metadata[PAYLOAD][0][:HEAD_CHARACTERS]
        settings = self.settings
        return note_signals(document, headers, html, settings.obey_signals, settings.signal_agents)

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
