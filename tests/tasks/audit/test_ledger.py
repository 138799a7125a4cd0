"""The ledger: every record has one fate, and hostile values are values."""

import json

import duckdb
import pytest

from pipeline_config.errors import AuditError
from tasks.audit import pages
from tasks.audit.comparison import compare
from tasks.audit.ledger import Ledger, connect, text, text_list
from tasks.audit.removal_review import why
from tasks.audit.trace import trace
from tasks.steps.selection import Selector

BIG = "x" * 100_000
HOSTILE = [
    pytest.param("<script>alert(1)</script>", id="HTML"),
    pytest.param("\"quotes' `;", id="quotes"),
    pytest.param("'; DROP TABLE members; --", id="SQL"),
    pytest.param("../../../etc/passwd", id="path"),
    pytest.param("a\x00b", id="NUL"),
    pytest.param("%_*?[a-z]", id="wildcards"),
    pytest.param("line\nbreak\r\n| cell |", id="line breaks"),
    pytest.param("[link](javascript:alert(1))", id="Markdown"),
    pytest.param("{braces} %s $1 \\1", id="format strings"),
    pytest.param("", id="empty"),
    pytest.param("  ", id="blank"),
    pytest.param(BIG, id="100 kB"),
]


def two_sources(hand, make) -> Ledger:
    """Two sources, one of which passes a stage that the other skips, up to the split."""
    web = hand.output(
        "document_import",
        [make.document("a"), make.document("b"), make.document("c")],
        [make.lost("d", "empty"), make.lost("e", "not_json", "line 5", "failed")],
        label="web",
    )
    books = hand.output("document_import", [make.document("a", "books")], label="books")
    good = hand.output(
        "quality_filtering", [make.document("a"), make.document("b")], [make.lost("c", "gopher_short_doc")]
    )
    good = good.model_copy(update={"label": "web", "inputs": (web.name,)})
    rows = [make.document("a"), make.document("a", "books")]
    distinct = hand.output(
        "deduplication", rows, [make.lost("b", "near_duplicate", "0.9 of a")], inputs=[good, books]
    )
    split = hand.output(
        "document_split", {"train-00000": rows[:1], "validation-00000": rows[1:]}, inputs=[distinct]
    )
    return hand.ledger(web, good, books, distinct, split)


def test_every_record_that_was_read_has_one_fate(hand, make):
    ledger = two_sources(hand, make)
    columns = "source, id, stage, fate, reason"
    rows = ledger.rows(f"SELECT {columns} FROM ({ledger.fates('source', 'id')}) ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [
        ("books", "a", "document_split", "kept", "validation"),
        ("web", "a", "document_split", "kept", "train"),
        ("web", "b", "deduplication", "removed", "near_duplicate"),
        ("web", "c", "quality_filtering", "removed", "gopher_short_doc"),
        ("web", "d", "document_import", "removed", "empty"),
        ("web", "e", "document_import", "failed", "not_json"),
    ]
    read = ledger.rows(f"SELECT source, id FROM ({ledger.read('source', 'id')}) ORDER BY ALL")
    assert read == [{"source": row["source"], "id": row["id"]} for row in rows]


def test_what_a_stopped_run_kept_last_is_kept_without_a_split(hand, make):
    first = hand.output("document_import", [make.document("a")], label="web")
    ledger = hand.ledger(first)
    (row,) = ledger.rows(f"SELECT * FROM ({ledger.fates('id')})")
    assert (row["stage"], row["fate"], row["reason"], row["id"]) == ("document_import", "kept", "", "a")


def test_the_fates_of_a_run_are_as_many_as_its_records(tiny_ledger):
    (read,) = tiny_ledger.rows(f"SELECT count(*) AS n FROM ({tiny_ledger.read('id')})")
    (fates,) = tiny_ledger.rows(
        f"SELECT count(*) AS n, count(DISTINCT id) AS ids FROM ({tiny_ledger.fates('id')})"
    )
    assert read["n"] == fates["n"] == fates["ids"] > 50


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_come_back_unchanged(hand, make, value):
    fields = {"url": f"https://e.example/{value}", "text": value, "file_path": value}
    first = hand.output(
        "document_import",
        [make.document(value, **fields), make.document("other")],
        [make.lost(f"gone {value}", value, value, **fields)],
        label="web",
    )
    ledger = hand.ledger(first)
    found = trace(ledger, Selector("url_prefix", f"https://e.example/{value}"))
    assert json.loads(json.dumps(found)) == found
    kept, gone = found["documents"]
    assert (kept["id"], gone["id"]) == (value, f"gone {value}")
    assert kept["url"] == gone["url"] == fields["url"]
    assert kept["record"]["file_path"] == value
    assert gone["fate"] == {
        "stage": "document_import",
        "fate": "removed",
        "reason": value,
        "value": value,
        "split": None,
    }
    (removed,) = why(ledger, "document_import", value)["sample"]
    assert [removed[name] for name in ("id", "value", "excerpt")] == [f"gone {value}", value, value]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_are_escaped_on_every_page(hand, make, value):
    marked = f"\n<b>{value}</b>\n"
    gone = make.lost("gone", marked, marked, url=f"https://e.example/{marked}", text=marked)
    first = hand.output("document_import", [make.document(marked, url=f"https://k.example/{marked}")], [gone])
    one, other = hand.ledger(first), hand.ledger(hand.output("document_import", [make.document("x")], [gone]))
    made = [
        pages.trace_page(trace(one, Selector("url", f"https://k.example/{marked}"))),
        pages.trace_page(trace(one, Selector("id", "gone"))),
        pages.why_page(why(one, "document_import", marked)),
        pages.compare_page(compare(one, other)),
    ]
    for page in made:
        assert "<b>" not in page
        assert "\x00" not in page
        assert all(line == "" or line[0] in "#|R*" for line in page.split("\n"))
    assert all("&#60;b&#62;" in page for page in made[:3])


def test_values_from_outside_do_not_change_a_query(hand, make):
    ledger = two_sources(hand, make)
    for value in ("' OR 1=1 --", "a' OR 'a'='a", "%", "_"):
        assert trace(ledger, Selector("id", value))["records"] == 0
        assert trace(ledger, Selector("url", f"https://web.example/{value}"))["records"] == 0


def test_a_store_in_a_folder_with_a_hostile_name_is_read(tmp_path, monkeypatch, make):
    home = tmp_path / "it's [a-z] *?;--"
    home.mkdir()
    monkeypatch.setenv("TOKENMILL_HOME", str(home))
    ledger = two_sources(make.hand(home), make)
    assert trace(ledger, Selector("id", "a"))["records"] == 2


def test_an_unknown_stage_is_refused_with_those_that_there_are(hand, make):
    ledger = two_sources(hand, make)
    with pytest.raises(AuditError, match="no stage 'packing' with a ledger; it has document_import, quality"):
        ledger.node("packing")


def test_a_stage_with_a_node_for_each_source_is_found_by_source(hand, make):
    ledger = two_sources(hand, make)
    assert ledger.node("document_import", "books").label == "books"
    assert ledger.node("document_import", "web").label == "web"


def test_a_run_whose_outputs_are_gone_is_refused(hand, make):
    node = hand.output("document_import", [make.document("a")])
    run = hand.run(node)
    hand.store.discard(node.stage, node.key)
    with pytest.raises(AuditError, match=r"has no tables below .* TOKENMILL_HOME is another folder"):
        Ledger(run, hand.store)


def test_rows_are_found_over_files_and_row_groups_with_their_places(hand, make):
    many = [make.document(f"{n:04d}") for n in range(2500)]
    node = hand.output("document_import", {"part-00000": many[:1200], "part-00001": many[1200:]})
    ledger = hand.ledger(node)
    found = ledger.find(node, "id IN (?, ?, ?)", ["1199", "1200", "2499"])
    assert [(row["id"], row["file"].rpartition("/")[2], row["row"]) for row in found] == [
        ("1199", "part-00000.parquet", 1199),
        ("1200", "part-00001.parquet", 0),
        ("2499", "part-00001.parquet", 1299),
    ]
    assert [row["text"] for row in found] == ["text of 1199", "text of 1200", "text of 2499"]
    assert len(ledger.find(node, "true", [], most=7)) == 7


def test_sql_literals_hold_any_text():
    values = ["it's", "''", "a;b", "-- x", 'say "x"', "\\'"]
    query = f"SELECT {', '.join(map(text, values))}, {text_list(values)}"
    *single, together = connect().execute(query).fetchone()
    assert single == together == values


def test_the_database_loads_no_extension():
    with pytest.raises(duckdb.Error):
        connect().execute("SELECT * FROM read_csv('https://example.com/a.csv')")
