"""Texts of the shared crawl's pages for the benchmarks, extracted once and kept in the temporary folder."""

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import trafilatura
from fastwarc import ArchiveIterator, WarcRecordType

CRAWL = Path(__file__).parents[3] / "shared" / "data" / "crawl"


@lru_cache(maxsize=1)
def crawled_texts() -> tuple[str, ...]:
    """The main text, by trafilatura, of every page of both snapshots that has one, in their order."""
    path = Path(tempfile.gettempdir()) / f"tokenmill-crawled-texts-{trafilatura.__version__}.jsonl.gz"
    if not path.is_file():
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        with gzip.open(temporary, "wt", encoding="utf-8") as file:
            for text in extracted():
                file.write(json.dumps(text) + "\n")
        temporary.replace(path)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return tuple(map(json.loads, file))


def extracted() -> Iterator[str]:
    """The text of every page that has one."""
    for warc in sorted(CRAWL.glob("crawl-data/*/segments/*/warc/*.warc.gz")):
        with warc.open("rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response):
                try:
                    text = trafilatura.extract(
                        record.reader.read(), favor_precision=True, include_comments=False
                    )
                except Exception:  # of pages that are no HTML
                    continue
                if text and _is_writable(text):
                    yield text


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=1)
def english_texts() -> tuple[str, ...]:
    """Those of the texts that language identification keeps by default."""
    from datatrove.data import Document

    from pipeline_config.curation import LanguageIdentification
    from tasks.steps.language_identification import IdentifyLanguage
    from tasks.steps.shards import FATE

    documents = [Document(text=text, id="", metadata={}) for text in crawled_texts()]
    kept = IdentifyLanguage(LanguageIdentification()).run(iter(documents))
    return tuple(document.text for document in kept if FATE not in document.metadata)
