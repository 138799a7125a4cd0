"""What the tests of the steps share: small crawls, fixed documents, and ways to run a step on its own."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from tasks.steps.sample_crawl import warc_record
from tasks.steps.shards import COUNTS, FATE
from tasks.steps.warc.pointers import HTTP_HEAD
from tasks.store import digest_of

VOCABULARY = """
the river of a city and its people that have lived with water for many years be kept to small harbour
wooden boats carry salt grain letters over quiet mornings while teachers explain old maps from northern
valleys where gardens grow beside long stone walls children listen because every story begins again
"""


@pytest.fixture(scope="session")
def run_step() -> Callable[..., list[Document]]:
    """Runs one step alone on documents, as rank 0 of 1."""

    def run(step: PipelineStep, documents: Iterable[Document] = (), rank: int = 0) -> list[Document]:
        return list(step.run(iter(documents), rank, rank + 1))

    return run


@pytest.fixture(scope="session")
def prose() -> Callable[..., str]:
    """English-like text from a fixed list of words: the same seed gives the same sentences."""

    def write(sentences: int, seed: int = 0, words: int = 12, per_line: int = 2) -> str:
        choose = random.Random(seed)
        made = [
            " ".join(choose.choices(VOCABULARY.split(), k=words)).capitalize() + "." for _ in range(sentences)
        ]
        return "\n".join(" ".join(made[n : n + per_line]) for n in range(0, sentences, per_line))

    return write


@pytest.fixture
def warc_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a WARC file of pages, each record a gzip member; `url -> html`."""

    def write(pages: dict[str, bytes], name: str = "crawl.warc.gz") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(warc_record(url, html) for url, html in pages.items()))
        return path

    return write


@pytest.fixture(scope="session")
def behaviour() -> Callable[[list[Document]], str]:
    """Digest of all that a step made of documents, for the golden tests.

    Floats are rounded: a score may differ in its last digits between processors.
    """

    def row(document: Document) -> dict[str, Any]:
        values = {"id": document.id, "text": document.text, **document.metadata}
        fate = values.pop(FATE, None)
        values.pop(HTTP_HEAD, None)  # no result, but what later steps of a stage look at
        values |= {"_fate": vars(fate) if fate else None, COUNTS: values.get(COUNTS)}
        return {
            name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()
        }

    return lambda documents: digest_of([row(document) for document in documents])


@pytest.fixture(scope="session")
def fixed_documents(prose: Callable[..., str]) -> Callable[[], list[Document]]:
    """A fresh copy of nine documents that between them meet most of the rules."""
    german = "Der Zug fährt heute nicht, weil auf der Strecke zwischen Ulm und Augsburg gebaut wird. " * 3
    texts = {
        "plain": prose(20),
        "copy": prose(20),
        "near": prose(20).replace("river", "stream", 1),
        "german": german,
        "short": "Too short to be anything.",
        "repeated": "The same line again and again.\n" * 30,
        "address": prose(18, seed=1) + "\nWrite to someone@company.example or to 8.8.8.8 for the rest of it.",
        "bracket": prose(18, seed=2) + "\nThis line holds a { bracket.",
        "empty": "",
    }
    return lambda: [
        Document(text=text, id=name, metadata={"source": "fixed", "url": f"https://a.example/{name}"})
        for name, text in texts.items()
    ]
