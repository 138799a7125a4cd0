"""Trace: every record's path, as the files themselves tell it."""

import base64
import hashlib
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline_config.settings import Settings
from tasks.audit import pages
from tasks.audit.trace import _source_record, trace
from tasks.steps.packing import load_tokenizer
from tasks.steps.selection import Selector


def rows_below(ledger, stage: str, table: str) -> list[dict]:
    """The rows of a table of a stage, read without the ledger."""
    folder = ledger.store.path(ledger.run.last(stage).output) / table
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="module")
def everything(tiny_run):
    """The trace of the tiny run's only domain."""
    from tasks.audit.ledger import Ledger
    from tasks.store import Store

    ledger = Ledger(tiny_run.record, Store(tiny_run.home / "store"))
    return trace(ledger, Selector("domain", "pydoc.example"), most=1000)


def test_every_record_has_the_one_fate_that_the_tables_give_it(tiny_ledger, everything):
    expected = {
        row["id"]: ("document_split", "kept")
        for row in rows_below(tiny_ledger, "document_split", "documents")
    }
    for node in tiny_ledger.stages:
        for row in rows_below(tiny_ledger, node.stage, "removed"):
            assert row["id"] not in expected
            expected[row["id"]] = (node.stage, row["reason"])
    fates = {found["id"]: found["fate"] for found in everything["documents"]}
    shown = {identity: (fate["stage"], fate["reason"] or fate["fate"]) for identity, fate in fates.items()}
    assert shown == expected
    assert everything["records"] == len(expected) == len(everything["documents"])
    counted = Counter(
        (row["stage"], row["reason"]) for row in everything["fates"] for _ in range(row["records"])
    )
    split = Counter(fate["split"] for fate in fates.values() if fate["split"])
    removed = Counter(place for place in expected.values() if place[1] != "kept")
    assert counted == removed + Counter({("document_split", name): n for name, n in split.items()})


def test_every_record_names_its_place_and_can_be_read_there(tiny_ledger, everything):
    pointers = {row["id"]: row for row in rows_below(tiny_ledger, "url_filtering", "documents")}
    for found in everything["documents"]:
        record, pointer = found["record"], pointers[found["id"]]
        for name in ("file_path", "warc_offset", "warc_length", "payload_digest", "date", "dump"):
            assert record[name] == pointer[name]
        with open(record["uri"], "rb") as file:
            file.seek(record["warc_offset"])
            assert file.read(2) == b"\x1f\x8b"
        assert record["readable"] is True
        assert record["digest_agrees"] is True
        assert record["html"].startswith("<!DOCTYPE html>")


def test_every_extracted_text_is_shown_and_every_step_in_order(tiny_ledger, everything):
    texts = {row["id"]: row["text"] for row in rows_below(tiny_ledger, "text_extraction", "documents")}
    order = [node.stage for node in tiny_ledger.stages]
    for found in everything["documents"]:
        stages = [step["stage"] for step in found["steps"]]
        assert stages == order[: len(stages)]
        assert [step["fate"] for step in found["steps"][:-1]] == ["kept"] * (len(stages) - 1)
        text = texts[found["id"]]
        change = found["steps"][1]["change"]
        assert change == {"characters": [None, len(text)], "after": text[:2000]}


def test_every_token_range_is_the_tokens_of_the_text(tiny_ledger, everything):
    folder = tiny_ledger.store.path(tiny_ledger.run.last("bpe_training").output)
    tokens = tiny_ledger.store.path(tiny_ledger.run.last("packing").output) / "tokens"
    tokenizer = load_tokenizer(str(folder / "tokenizer" / "tokenizer.json"))
    texts = {row["id"]: row["text"] for row in rows_below(tiny_ledger, "document_split", "documents")}
    for found in everything["documents"]:
        assert len(found["tokens"]) == (1 if found["id"] in texts else 0)
        for part in found["tokens"]:
            ids = np.fromfile(tokens / f"{part['shard']}.ds", "<u2")[part["start_token"] : part["end_token"]]
            assert ids[:-1].tolist() == tokenizer.encode(texts[found["id"]]).ids
            assert tokenizer.id_to_token(int(ids[-1])) == "<|endoftext|>"
            assert part["split"] == found["fate"]["split"]
            assert tiny_ledger.run.last("training").key in [c["key"] for c in found["checkpoints"]]


def test_a_page_of_everything_holds_every_url(everything):
    page = pages.trace_page(everything)
    assert page.count("\n## ") == len(everything["documents"])
    assert page.count("(the source agrees)") == len(everything["documents"])


def test_the_most_paths_are_shown_and_all_records_are_counted(tiny_ledger, everything):
    found = trace(tiny_ledger, Selector("domain", "pydoc.example"), most=2)
    assert found["documents"] == everything["documents"][:2]
    assert (found["records"], found["fates"]) == (everything["records"], everything["fates"])


@pytest.mark.parametrize(
    ("kind", "cut", "records"),
    [
        pytest.param("url", lambda url: url, 1, id="URL"),
        pytest.param("url", lambda url: url.replace("https", "http"), 1, id="URL with http"),
        pytest.param("url", lambda url: url + "x", 0, id="unknown URL"),
        pytest.param("url_prefix", lambda url: url[:-3], 1, id="prefix"),
        pytest.param("url_prefix", lambda url: url + "/", 0, id="prefix that is longer"),
        pytest.param("domain", lambda url: "other.example", 0, id="unknown domain"),
        pytest.param("id", lambda url: "urn:uuid:0", 0, id="unknown id"),
    ],
)
def test_a_selector_means_the_records_that_it_names(tiny_ledger, everything, kind, cut, records):
    found = trace(tiny_ledger, Selector(kind, cut(everything["documents"][5]["url"])))
    assert found["records"] == len(found["documents"]) == records
    assert sum(row["records"] for row in found["fates"]) == records


def ids_in_two_sources(hand, make, removed: dict, members=()):
    """Two sources with the documents a and b each; deduplication removes one of them."""
    names = ("web", "books")
    rows = {name: [make.document("a", name), make.document("b", name)] for name in names}
    first = [hand.output("document_import", rows[name], label=name) for name in names]
    kept = [
        row
        for name in names
        for row in rows[name]
        if (row["source"], row["id"]) != (removed["source"], removed["id"])
    ]
    distinct = hand.output("deduplication", kept, [removed], inputs=first, fill=make.clusters(*members))
    split = hand.output("document_split", {"train-00000": kept}, inputs=[distinct])
    return hand.ledger(*first, distinct, split)


def member(shard: int, row: int, identity: str, survivor: str, similarity: float, kept: bool) -> dict:
    """A row of the table of clusters."""
    place = {"shard": shard, "row": row, "id": identity}
    return place | {"cluster": survivor, "survivor": survivor, "similarity": similarity, "kept": kept}


def test_an_id_that_two_sources_share_is_two_documents(hand, make):
    ledger = ids_in_two_sources(hand, make, make.lost("b", "near_duplicate", "0.91 of a", source="books"))
    web, books = trace(ledger, Selector("id", "b"))["documents"]
    assert (web["source"], web["fate"]["fate"], web["fate"]["split"]) == ("web", "kept", "train")
    assert (books["source"], books["fate"]["fate"], books["fate"]["value"]) == (
        "books",
        "removed",
        "0.91 of a",
    )
    assert web["url"] != books["url"]
    assert [step["source"] for step in books["steps"]] == ["books", "all"]


def test_the_cluster_of_a_duplicate_is_shown_with_the_sources_of_its_members(hand, make):
    members = (member(0, 0, "a", "a", 1.0, True), member(1, 1, "b", "a", 0.91, False))
    gone = make.lost("b", "near_duplicate", "0.91 of a", source="books")
    ledger = ids_in_two_sources(hand, make, gone, members)
    found = {
        (d["source"], d["id"]): d["cluster"]
        for d in trace(ledger, Selector("url_prefix", "https://w"))["documents"]
    }
    found |= {
        (d["source"], d["id"]): d["cluster"]
        for d in trace(ledger, Selector("domain", "books.example"))["documents"]
    }
    cluster = [
        {"id": "a", "kept": True, "similarity": 1.0, "url": "https://web.example/a", "source": "web"},
        {"id": "b", "kept": False, "similarity": 0.91, "url": "https://books.example/b", "source": "books"},
    ]
    assert found == {("web", "a"): cluster, ("books", "b"): cluster, ("web", "b"): [], ("books", "a"): []}


def test_what_a_stage_changed_in_a_text_is_shown_as_a_difference(hand, make):
    before, after = "one line\nme@example.com wrote\nlast", "one line\nemail@example.com wrote\nlast"
    first = hand.output("document_import", [make.document("a", text=before)], label="web")
    scrubbed = hand.output("pii_scrubbing", [make.document("a", text=after)], inputs=[first])
    (found,) = trace(hand.ledger(first, scrubbed), Selector("id", "a"))["documents"]
    assert found["steps"][0]["change"] is None
    change = found["steps"][1]["change"]
    assert change["characters"] == [len(before), len(after)]
    assert change["diff"][-2:] == ["-me@example.com wrote", "+email@example.com wrote"]
    assert "+email@example.com wrote" in pages.trace_page(
        trace(hand.ledger(first, scrubbed), Selector("id", "a"))
    )


def test_records_that_share_an_id_in_a_crawl_are_told_apart_by_their_place(hand, make):
    same = {"url": "https://web.example/", "text": None}
    rows = [make.document("a", warc_offset=offset, warc_length=9, **same) for offset in (0, 9)]
    first = hand.output("url_filtering", rows, label="web")
    gone = make.lost("a", "no_text", warc_offset=9, **same | {"text": ""})
    texts = hand.output("text_extraction", [rows[0] | {"text": "x"}], [gone], label="web", inputs=[first])
    found = trace(hand.ledger(first, texts), Selector("id", "a"))["documents"]
    assert [(d["record"]["warc_offset"], d["fate"]["fate"]) for d in found] == [(0, "kept"), (9, "removed")]


PAGE = b"<p>Hello"
HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + PAGE
RECORD = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http;msgtype=response\r\n"
RECORD += b"Content-Length: %d\r\n\r\n%b\r\n\r\n" % (len(HTTP), HTTP)
SHA1 = base64.b32encode(hashlib.sha1(PAGE).digest()).decode()


@pytest.mark.parametrize(
    ("digest", "length", "expected"),
    [
        pytest.param(f"sha1:{SHA1}", len(RECORD), {"readable": True, "digest_agrees": True}, id="agrees"),
        pytest.param(f"sha1:{'A' * 32}", len(RECORD), {"readable": True, "digest_agrees": False}, id="other"),
        pytest.param(SHA1, len(RECORD), {"readable": True, "digest_agrees": True}, id="no algorithm named"),
        pytest.param("sha256:ab", len(RECORD), {"readable": True, "digest_agrees": None}, id="not SHA-1"),
        pytest.param(None, len(RECORD), {"readable": True, "digest_agrees": None}, id="no digest"),
        pytest.param(None, len(RECORD) + 1, {"readable": False}, id="cut off"),
        pytest.param(f"sha1:{SHA1}", None, {}, id="length not on record"),
    ],
)
def test_the_source_is_read_again(hand, make, tmp_path, digest, length, expected):
    (tmp_path / "a.warc").write_bytes(RECORD)
    source = {"name": "web", "kind": "warc", "base": str(tmp_path), "uris": ["a.warc"]}
    ledger = hand.ledger(hand.output("url_filtering", [make.document("a")], label="web"), sources=[source])
    assert Settings.model_validate(ledger.run.settings).sources[0].base == str(tmp_path)
    entry = {"source": "web", "file_path": "a.warc", "warc_offset": 0, "warc_length": length}
    found = _source_record(ledger, entry | {"payload_digest": digest})
    assert found["uri"] == str(tmp_path / "a.warc")
    assert {name: found.get(name) for name in expected} == expected


def test_a_source_that_is_gone_is_an_answer(hand, make, tmp_path):
    source = {"name": "web", "kind": "warc", "base": str(tmp_path), "uris": ["a.warc"]}
    row = make.document("a", file_path="a.warc", warc_offset=0, warc_length=9, text=None)
    ledger = hand.ledger(hand.output("url_filtering", [row], label="web"), sources=[source])
    found = trace(ledger, Selector("id", "a"))
    assert found["documents"][0]["record"]["readable"] is False
    assert "FileNotFoundError" in found["documents"][0]["record"]["problem"]
    assert "the source cannot be read now" in pages.trace_page(found)
