"""The figures of a corpus: they add up, and they are those of its tables."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.audit.ledger import Ledger
from tasks.reports.corpus_statistics import KEPT_EXCERPT_CHARACTERS, corpus_statistics

Row = dict[str, Any]
SAMPLES, DOMAINS = 3, 5


@pytest.fixture(scope="module")
def measured() -> dict[str, Row]:
    """What was computed already, by the run's id."""
    return {}


@pytest.fixture
def tiny(tiny_ledger: Ledger, measured: dict[str, Row]) -> Row:
    """The statistics of the tiny run."""
    identity = tiny_ledger.run.id
    if identity not in measured:
        measured[identity] = corpus_statistics(tiny_ledger, SAMPLES, DOMAINS, seed=0)
    return measured[identity]


@pytest.fixture
def corpus(tiny_run: SimpleNamespace) -> list[Row]:
    """The documents of the tiny corpus, read without a ledger."""
    folder = tiny_run.home / "store" / "document_split" / tiny_run.outcome.outputs["corpus"].key / "documents"
    return list(rows_of(folder))


def rows_of(folder: Any) -> Iterator[Row]:
    for path in sorted(folder.glob("*.parquet")):
        yield from (row | {"split": path.name.split("-")[0]} for row in pq.read_table(path).to_pylist())


def test_every_record_read_is_kept_or_has_a_reason(tiny: Row):
    assert tiny["read"] == tiny["totals"]["documents"] + sum(row["records"] for row in tiny["reasons"])
    assert tiny["read"] > tiny["totals"]["documents"] > 0


def test_every_stage_gives_what_it_reads_a_fate(tiny: Row):
    reasons: Counter[str] = Counter()
    for row in tiny["reasons"]:
        reasons[row["stage"]] += row["records"]
    for stage in tiny["stages"]:
        lost = sum(stage["removed"].values()) + sum(stage["failed"].values())
        assert stage["read"] == stage["kept"] + lost
        assert reasons[stage["stage"]] == lost


def test_a_stage_reads_what_those_before_it_kept(tiny: Row):
    kept = {stage["name"]: stage["kept"] for stage in tiny["stages"]}
    followers = [stage for stage in tiny["stages"] if kept.keys() & set(stage["inputs"])]
    assert len(followers) == len(tiny["stages"]) - 1
    for stage in followers:
        assert stage["read"] == sum(kept.get(name, 0) for name in stage["inputs"])


def test_the_figures_are_those_of_the_documents(tiny: Row, corpus: list[Row]):
    count, size = len(corpus), sum(len(row["text"].encode()) for row in corpus)
    assert tiny["totals"] == {"documents": count, "text_bytes": size}
    splits = Counter(row["split"] for row in corpus)
    assert {row["split"]: row["documents"] for row in tiny["splits"]} == splits
    languages = Counter(row["language"] for row in corpus)
    assert {row["language"]: row["documents"] for row in tiny["languages"]} == languages
    for name in ("splits", "lengths", "languages", "scores", "sources"):
        assert sum(row["documents"] for row in tiny[name]) == count, name
    for name in ("splits", "sources"):
        assert sum(row["text_bytes"] for row in tiny[name]) == size, name


def test_the_domains_are_the_most_frequent_ones(tiny: Row, corpus: list[Row]):
    hosts = Counter(row["url"].split("/")[2].lower() for row in corpus)
    expected = sorted(hosts.items(), key=lambda item: (-item[1], item[0]))[:DOMAINS]
    assert [(row["domain"], row["documents"]) for row in tiny["domains"]] == expected


def test_clusters_lose_what_deduplication_removed(tiny: Row):
    removed = next(stage["removed"] for stage in tiny["stages"] if stage["stage"] == "deduplication")
    assert sum(row["removed"] for row in tiny["clusters"]) == sum(removed.values())


def test_the_shards_hold_each_documents_tokens_and_its_end(tiny: Row, tiny_run: SimpleNamespace):
    tokens = tiny["tokens"]
    assert tokens["documents"] == tiny["totals"]["documents"]
    assert sum(tokens["by_source"].values()) == tokens["tokens"] + tokens["documents"]
    folder = tiny_run.home / "store" / "packing" / tiny_run.outcome.outputs["tokens"].key
    size = sum(path.stat().st_size for path in folder.glob("tokens/*.ds"))
    assert size == sum(tokens["by_source"].values()) * tokens["token_bytes"]


def test_samples_are_some_of_each_kind(tiny: Row, corpus: list[Row]):
    texts = {row["id"]: row["text"] for row in corpus}
    assert len(tiny["kept_samples"]) == SAMPLES
    for row in tiny["kept_samples"]:
        assert row["excerpt"] == texts[row["id"]][:KEPT_EXCERPT_CHARACTERS]
    shown = Counter((row["stage"], row["fate"], row["reason"]) for row in tiny["removed_samples"])
    counts = {(row["stage"], row["fate"], row["reason"]): row["records"] for row in tiny["reasons"]}
    assert shown == {reason: min(SAMPLES, count) for reason, count in counts.items()}


def test_the_seed_decides_the_samples(tiny: Row, tiny_ledger: Ledger):
    again, other = (corpus_statistics(tiny_ledger, SAMPLES, DOMAINS, seed) for seed in (0, 1))
    assert again == tiny
    assert other["kept_samples"] != tiny["kept_samples"]
    assert other | {"kept_samples": 0, "removed_samples": 0} == tiny | {
        "kept_samples": 0,
        "removed_samples": 0,
    }


def test_without_samples_no_text_is_shown(tiny_ledger: Ledger, corpus: list[Row]):
    statistics = corpus_statistics(tiny_ledger, 0, DOMAINS, seed=0)
    assert (statistics["kept_samples"], statistics["removed_samples"]) == ([], [])
    shown = json.dumps(statistics)
    assert not any(row["id"] in shown for row in corpus)


def test_what_was_taken_down_is_counted_and_not_shown(small_ledger: Callable[..., Ledger]):
    lost = [{"id": "gone", "url": "https://gone.example/", "fate": "removed", "excerpt": ""}]
    other = {"id": "short", "fate": "removed", "reason": "too_short", "excerpt": "few words"}
    ledger = small_ledger([{"id": "a", "text": "text"}], [lost[0] | {"reason": "takedown"}, other])
    statistics = corpus_statistics(ledger, 10, 10, 0)
    assert {row["reason"]: row["records"] for row in statistics["reasons"]} == {"takedown": 1, "too_short": 1}
    assert [row["id"] for row in statistics["removed_samples"]] == ["short"]
    assert "gone" not in json.dumps(statistics)
    [source] = statistics["sources"]
    assert source["content"] == [{"path": "x.jsonl", "content": "c" * 64}]
    assert source["takedowns"] == [{"takedown": "t" * 64, "date": "d", "reason": "r"}]


@pytest.mark.parametrize(
    ("url", "domain"),
    [
        pytest.param("https://A.example/x", "a.example", id="case"),
        pytest.param("http://user:word@b.example:80/", "b.example", id="user_and_port"),
        pytest.param("https://c.example?q=https://d.example/", "c.example", id="query"),
        pytest.param("no url", "", id="no_url"),
        pytest.param("https://x.example@e.example/", "e.example", id="host_as_user"),
        pytest.param("https://\"'<b>.example/", "\"'<b>.example", id="odd_characters"),
    ],
)
def test_a_domain_is_the_host_of_the_url(small_ledger: Callable[..., Ledger], url: str, domain: str):
    statistics = corpus_statistics(small_ledger([{"id": "a", "text": "t", "url": url}], []), 1, 1, 0)
    assert [row["domain"] for row in statistics["domains"]] == [domain]


def test_documents_without_url_language_or_text_are_counted(small_ledger: Callable[..., Ledger]):
    statistics = corpus_statistics(small_ledger([{"id": "a", "text": ""}], []), 1, 1, 0)
    assert statistics["totals"] == {"documents": 1, "text_bytes": 0}
    assert statistics["languages"] == [{"language": "not identified", "documents": 1}]
    assert statistics["lengths"] == [{"bin": 0.0, "documents": 1}]
    assert (statistics["scores"], statistics["domains"], statistics["clusters"]) == ([], [], [])
    assert statistics["tokens"] is None


def test_an_empty_corpus_has_figures(small_ledger: Callable[..., Ledger]):
    statistics = corpus_statistics(small_ledger([], []), 1, 1, 0)
    assert statistics["totals"] == {"documents": 0, "text_bytes": 0}
    assert statistics["sources"][0]["documents"] == 0
