"""The corpus card: a header that tools read, and a page whose shape no text from outside changes."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tasks.markup import as_text
from tasks.reports.corpus_card import corpus_card

FILES = {"train": ["data/train-00000.parquet"], "validation": ["data/validation-00000.parquet"]}
HEADER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)  # as huggingface_hub finds it
KEYS = {
    "pretty_name",
    "license",
    "license_name",
    "language",
    "task_categories",
    "size_categories",
    "configs",
}


def card_of(made: SimpleNamespace, files: dict[str, list[str]] = FILES) -> tuple[dict[str, Any], str]:
    """The header and the rest of the card, as they are in its file."""
    card = corpus_card(made.statistics, made.facts, files).encode("utf-8", "replace").decode()
    found = HEADER.match(card)
    return yaml.safe_load(found.group(1)), card[found.end() :]


def shape(body: str) -> list[Any]:
    """What a Markdown reader makes of each line, without its words: headings, table cells, texts."""
    return [
        line if line.startswith("#") else line.count("|") or bool(line.strip()) for line in body.split("\n")
    ]


def test_the_header_parses_whatever_the_sources_say(hostile: SimpleNamespace):
    header, _ = card_of(hostile)
    assert header.keys() == KEYS
    assert header["license"] == "other"
    assert header["license_name"] == hostile.text
    assert header["language"] == [hostile.text]
    assert header["configs"] == [
        {
            "config_name": "default",
            "data_files": [{"split": split, "path": names} for split, names in FILES.items()],
        }
    ]


def test_a_hostile_text_changes_no_heading_no_table_and_no_line(
    hostile: SimpleNamespace, harmless: SimpleNamespace
):
    assert shape(card_of(hostile)[1]) == shape(card_of(harmless)[1])


def test_a_hostile_text_makes_no_markup(hostile: SimpleNamespace):
    _, body = card_of(hostile)
    assert "<" not in body
    assert "](" not in body
    assert "**" not in body
    assert "javascript:" not in body
    assert len(body) < 20_000


@pytest.mark.parametrize(
    ("documents", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (99_999, "10K<n<100K"),
        (9_999_999, "1M<n<10M"),
        (10_000_000, "n>10M"),
    ],
)
def test_the_size_category_follows_from_the_documents(
    harmless: SimpleNamespace, documents: int, category: str
):
    harmless.statistics["totals"]["documents"] = documents
    assert card_of(harmless)[0]["size_categories"] == [category]


def test_licences_are_named_once(harmless: SimpleNamespace):
    [source] = harmless.statistics["sources"]
    sources = [source | {"licence": name} for name in ("MIT", "CC0", "MIT")]
    harmless.statistics["sources"] = sources
    assert card_of(harmless)[0]["license_name"] == "CC0, MIT"


def test_the_numbers_of_every_stage_add_up(harmless: SimpleNamespace):
    body = as_text(card_of(harmless)[1])
    table = body.split("in every stage.\n\n")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert [row[0] for row in rows] == ["document_import", "document_split"]
    for _, _, read, kept, removed, failed in rows:
        assert int(read) == int(kept) + int(removed) + int(failed)


def test_takedowns_are_named_with_their_source(harmless: SimpleNamespace):
    _, body = card_of(harmless)
    assert f"| {'d' * 64} | 2026-11-30 | word | word |" in body


def test_an_empty_corpus_has_a_card(nothing: SimpleNamespace):
    header, body = card_of(nothing, {})
    assert header["configs"][0]["data_files"] == []
    assert header["license_name"] == ""
    assert "0 documents, 0 bytes of text, from 0 records read" in body
    assert body.count("*none*") == 4
