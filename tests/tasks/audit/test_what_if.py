"""What if: the estimate is the truth where the sample is everything, and brackets it elsewhere."""

from pathlib import Path

import numpy as np
import pytest
from datatrove.data import Document

from pipeline_config.errors import AuditError, SettingsError
from pipeline_config.presets import apply_overrides
from pipeline_config.settings import Settings
from tasks.audit import pages
from tasks.audit.what_if import _estimate, _sample, what_if
from tasks.steps.document_split import split_of
from tasks.steps.packing import load_tokenizer
from tasks.steps.quality_filtering import FilterQuality
from tasks.steps.sample_crawl import warc_record
from tasks.steps.shards import FATE, read_documents

STRICTER = "quality_filtering.gopher_quality.min_doc_words=150"


def kept_by_quality(ledger, *overrides: str) -> dict[str, Document]:
    """What the filter keeps under some settings of all documents that it got, by id."""
    settings = apply_overrides(Settings.model_validate(ledger.run.settings), overrides)
    before = ledger.files(ledger.run.last("language_identification"), "documents")
    documents = [document for path in before for document in read_documents(path)]
    step = FilterQuality(settings.quality_filtering)
    return {d.id: d for d in step.run(iter(documents)) if FATE not in d.metadata}


@pytest.fixture(scope="module")
def truth(tiny_run):
    """The ids that a stricter and a laxer filter lose and win, from runs of the step over all documents."""
    from tasks.audit.ledger import Ledger
    from tasks.store import Store

    ledger = Ledger(tiny_run.record, Store(tiny_run.home / "store"))
    now, stricter = kept_by_quality(ledger), kept_by_quality(ledger, STRICTER)
    assert {document.id for document in now.values()} == {
        row["id"] for row in ledger.rows(ledger.kept(ledger.node("quality_filtering"), "id"))
    }
    return now, stricter


def test_with_all_documents_as_the_sample_the_answer_is_the_truth(tiny_ledger, truth):
    now, stricter = truth
    lost = sorted(now.keys() - stricter.keys())
    assert 5 < len(lost) < len(now)
    found = what_if(tiny_ledger, [STRICTER], sample=10_000)
    (source,) = found["sources"]
    assert source["sampled"] == source["records"] > len(now)
    exact = {"in_sample": len(lost), "estimate": len(lost), "from": len(lost), "to": len(lost)}
    assert source["lost"] == exact
    assert source["won"] == source["texts_changed"] == dict.fromkeys(exact, 0)
    assert source["reasons"][1]["gopher_short_doc"] >= len(lost)
    assert {row["id"] for row in source["lost_examples"]} <= set(lost)
    assert found["stage"] == "quality_filtering"
    folder = tiny_ledger.store.path(tiny_ledger.run.last("bpe_training").output)
    tokenizer = load_tokenizer(str(folder / "tokenizer" / "tokenizer.json"))
    corpus = {
        r["id"]: r["text"]
        for r in tiny_ledger.rows(tiny_ledger.kept(tiny_ledger.node("document_split"), "id", "text"))
    }
    assert source["lost_tokens"] == sum(len(tokenizer.encode(corpus[identity]).ids) for identity in lost)


def test_estimates_from_a_part_bracket_the_truth(tiny_ledger, truth):
    lost = len(truth[0].keys() - truth[1].keys())
    for seed in range(3):
        (source,) = what_if(tiny_ledger, [STRICTER], sample=20, seed=seed)["sources"]
        assert source["sampled"] == 20
        assert source["lost"]["from"] <= lost <= source["lost"]["to"]
        assert source["lost"]["from"] < source["lost"]["to"]


def test_a_sample_is_reproducible_and_another_seed_takes_another(tiny_ledger):
    override = ["document_split.validation_share=0.5"]
    once, again, *others = (what_if(tiny_ledger, override, sample=15, seed=seed) for seed in (1, 1, 2, 3, 4))
    assert once == again
    assert any(once["sources"] != other["sources"] for other in others)  # two may find as many by chance


def test_a_laxer_filter_wins_what_the_other_one_removed(tiny_ledger, truth):
    lax = "quality_filtering.gopher_quality.min_doc_words=0"
    won = kept_by_quality(tiny_ledger, lax).keys() - truth[0].keys()
    (source,) = what_if(tiny_ledger, [lax], sample=10_000)["sources"]
    assert source["won"]["estimate"] == len(won)
    assert source["lost"]["estimate"] == 0
    assert {row["before"] for row in source["won_examples"]} <= {"removed gopher_short_doc"}


def test_another_split_moves_documents_and_loses_none(tiny_ledger):
    found = what_if(tiny_ledger, ["document_split.seed=7"], sample=10_000)
    settings = Settings.model_validate(tiny_ledger.run.settings).document_split
    ids = [row["id"] for row in tiny_ledger.rows(tiny_ledger.kept(tiny_ledger.node("document_split"), "id"))]
    moved = [i for i in ids if split_of(i, settings) != split_of(i, settings.model_copy(update={"seed": 7}))]
    (source,) = found["sources"]
    assert source["moved_to_the_other_split"]["estimate"] == len(moved) > 0
    assert source["won"]["estimate"] == source["lost"]["estimate"] == 0


def crawl(path: Path) -> list[int]:
    """Writes a WARC file of three pages; returns where each begins."""
    words = "Plain sentences of the page that the filter kept out, one after the other. " * 9
    html = [f"<html><body><article><p>{words}{name}</p></article></body></html>" for name in "abc"]
    records = [warc_record(f"https://web.example/{n}", page.encode()) for n, page in enumerate(html)]
    path.write_bytes(b"".join(records))
    return [sum(map(len, records[:number])) for number in range(3)]


def test_documents_that_a_payload_type_kept_out_are_fetched_and_won(hand, make, tmp_path):
    offsets = crawl(tmp_path / "a.warc.gz")
    size = (tmp_path / "a.warc.gz").stat().st_size
    places = [
        {"file_path": "a.warc.gz", "warc_offset": start, "warc_length": end - start, "text": None}
        for start, end in zip(offsets, [*offsets[1:], size], strict=True)
    ]
    kept = [make.document("a", **places[0])]
    gone = [
        make.lost("b", "payload_type", "text/plain", **places[1] | {"text": ""}),
        make.lost("c", "payload_type", "application/pdf", **places[2] | {"text": ""}),
    ]
    first = hand.output("url_filtering", kept, gone, label="web")
    source = {"name": "web", "kind": "warc", "base": str(tmp_path), "uris": ["a.warc.gz"], "stages": []}
    ledger = hand.ledger(first, sources=[source], url_filtering={"use_integrated_lists": False})
    for types, won in (("[text/html, text/plain]", "b"), ("[text/html, application/pdf]", "c")):
        (found,) = what_if(ledger, [f"url_filtering.payload_types={types}"])["sources"]
        assert [row["id"] for row in found["won_examples"]] == [won]
        assert (found["won"]["estimate"], found["lost"]["estimate"]) == (1, 0)


def test_what_was_taken_down_is_not_won_back(hand, make):
    gone = make.lost("b", "takedown", "url in list", warc_offset=9, text="")
    first = hand.output("url_filtering", [make.document("a", text=None, warc_offset=0)], [gone], label="web")
    source = {"name": "web", "kind": "warc", "uris": ["a.warc.gz"]}
    ledger = hand.ledger(first, sources=[source], url_filtering={"payload_types": ["a/b"]})
    records, total = _sample(ledger, "web", "url_filtering", 10, 0)
    assert ([row["id"] for row in records], total) == (["a"], 1)


def duplicates(hand, make):
    """Four documents, two of which are the same but for a word, before and after deduplication."""
    words = [f"{one}{two}" for one in "abcdefgh" for two in "aeioulmn"]
    texts = {"a": words, "b": [*words[:-1], "zz"], "c": words[::-1], "d": ["other", *words[::2]]}
    rows = [make.document(name, text=" ".join(text)) for name, text in texts.items()]
    imported = hand.output("document_import", rows, label="web")
    first = hand.output("language_identification", rows, label="web", inputs=[imported])
    distinct = hand.output(
        "deduplication", [rows[0], *rows[2:]], [make.lost("b", "near_duplicate")], inputs=[first]
    )
    return hand.ledger(
        imported, first, distinct, sources=[{"name": "web", "kind": "documents", "uris": ["x.jsonl"]}]
    )


def test_deduplication_is_computed_again_among_the_sample(hand, make):
    ledger = duplicates(hand, make)
    strict = what_if(ledger, ["deduplication.bands=1", "deduplication.rows_per_band=64"])
    assert strict["sources"][0]["won"]["estimate"] == 1
    assert strict["sources"][0]["won_examples"][0]["id"] == "b"
    assert "lower bound" in strict["notes"][0]


def test_a_change_before_deduplication_says_what_is_not_computed_again(hand, make):
    found = what_if(duplicates(hand, make), ["language_identification.min_score=0.1"])
    assert "Deduplication is not computed again" in found["notes"][0]
    assert "25.0%" in found["notes"][0]
    assert "25.0%" in pages.what_if_page(found)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        pytest.param([], AuditError, "they change nothing. Stages to change: url_filtering, text", id="none"),
        pytest.param(
            ["document_split.validation_share=0.2"], AuditError, "they change nothing", id="same value"
        ),
        pytest.param(["training.steps=7"], AuditError, "they change only training", id="training"),
        pytest.param(["execution.workers=7"], AuditError, "they change only execution", id="execution"),
        pytest.param(
            ["quality_filtering.nothing=1"], SettingsError, "there is no such setting", id="unknown"
        ),
        pytest.param(["min_doc_words=-1"], SettingsError, "min_doc_words: -1 is refused", id="refused value"),
        pytest.param(
            ["min_doc_words"], SettingsError, "is not of the form section.field=value", id="no value"
        ),
        pytest.param(["seed=1"], SettingsError, "several settings fit", id="ambiguous"),
    ],
)
def test_overrides_that_ask_nothing_are_refused(tiny_ledger, overrides, error, message):
    with pytest.raises(error, match=message):
        what_if(tiny_ledger, overrides)


def test_a_stage_that_no_source_passes_is_refused(hand, make):
    source = {"name": "web", "kind": "documents", "uris": ["a.jsonl"], "stages": []}
    ledger = hand.ledger(hand.output("document_import", [make.document("a")], label="web"), sources=[source])
    for override in ("min_doc_words=7", "url_filtering.soft_word_threshold=9"):
        with pytest.raises(AuditError, match="no source passes the stage"):
            what_if(ledger, [override])


@pytest.mark.parametrize(
    ("share", "total", "sampled"),
    [
        pytest.param(0.5, 1000, 100, id="half"),
        pytest.param(0.1, 1000, 100, id="some"),
        pytest.param(0.02, 1000, 200, id="few"),
        pytest.param(0.97, 1000, 100, id="almost all"),
        pytest.param(0.3, 60, 40, id="most of a small number"),
        pytest.param(0.0, 500, 50, id="none"),
        pytest.param(1.0, 500, 50, id="all"),
    ],
)
def test_the_intervals_hold_the_truth_as_often_as_they_say(share, total, sampled):
    truth = round(share * total)
    draws = np.random.default_rng(0).hypergeometric(truth, total - truth, sampled, size=2000)
    estimates = [_estimate(int(found), sampled, total) for found in draws]
    covered = np.mean([found["from"] <= truth <= found["to"] for found in estimates])
    assert covered >= 0.92  # Wilson's intervals: 0.95 on average over the shares, as counts are whole
    assert abs(np.mean([found["estimate"] for found in estimates]) - truth) <= 0.01 * total
    for found in estimates:
        assert found["in_sample"] <= found["from"] <= found["estimate"] <= found["to"]
        assert found["to"] <= total - sampled + found["in_sample"]


def test_an_interval_narrows_with_the_sample_and_closes_when_it_is_everything():
    widths = [(e := _estimate(n // 10, n, 1000))["to"] - e["from"] for n in (20, 100, 500, 1000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 0
    assert _estimate(0, 0, 0) == {"in_sample": 0, "estimate": 0, "from": 0, "to": 0}
