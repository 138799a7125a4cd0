"""Shards: one fate per record, the same bytes for the same rows, and files that are whole or not there."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document

from pipeline_config.errors import SourceError
from tasks.steps.shards import (
    ANNOTATION_SCHEMA,
    COUNTS,
    DOCUMENT_SCHEMA,
    FATE,
    NOTES,
    POINTER_SCHEMA,
    REMOVED_SCHEMA,
    ROWS_PER_GROUP,
    CountDocuments,
    DecidingStep,
    ReadShard,
    TableWriter,
    WriteShard,
    failed,
    read_documents,
    removed,
)
from tasks.store import digest_of, file_digest

GOLDEN = "992230f811fb83d0e0d3304839c2c20450a9cfd4bcd20daee80a04970488309b"
FULL = {
    "dump": "D",
    "url": "u",
    "date": "2000",
    "file_path": "f",
    "language": "en",
    "language_score": 0.1 + 0.2,
    "token_count": 2**40,
    "warc_offset": 0,
    "warc_length": 1,
    "payload_digest": "p",
    "extractor": "e",
    "source": "s",
}
KILLED = """
import os, signal, sys
from datatrove.data import Document
from tasks.steps.shards import WriteShard
def documents():
    yield from (Document(text="text", id=str(n)) for n in range(2500))
    os.kill(os.getpid(), signal.SIGKILL)
list(WriteShard(sys.argv[1]).run(documents(), 0, 1))
"""


def documents(number: int = 3) -> list[Document]:
    return [
        Document(text=f"text {n} — ünïcode\n", id=f"id-{n}", metadata={"url": f"https://a.example/{n}"})
        for n in range(number)
    ]


class DecideById(DecidingStep):
    """Removes ids with an r, fails those with an f, raises on those with an e, stops on those with an s."""

    def decide(self, document):
        if "s" in document.id:
            raise SourceError("the input is broken")
        if "e" in document.id:
            return {}[document.id]
        choices = {"r": removed("rule", 0.25), "f": failed("mishap", "why")}
        return choices.get(document.id[0])


@pytest.fixture
def write(tmp_path, run_step):
    """Writes documents as a shard below a folder and returns the folder with the books."""

    def run(made: list[Document], folder: str = "out", **settings) -> tuple:
        (tmp_path / folder).mkdir(exist_ok=True)
        run_step(WriteShard(str(tmp_path / folder), **settings), made)
        return tmp_path / folder, json.loads((tmp_path / folder / "shards" / "00000.json").read_text())

    return run


def test_documents_come_back_as_they_were_written(write, run_step):
    assert {"text", "id", *FULL} == set(DOCUMENT_SCHEMA.names)
    made = [
        *documents(),
        Document(text="", id="empty"),
        Document(text="x\x00\ud7ff", id="full", metadata=FULL),
    ]
    folder, _ = write(made)
    assert run_step(ReadShard([str(folder / "documents/part-00000.parquet")])) == made


def test_a_rank_reads_its_own_shard(write, run_step):
    shards = [str(write(documents(n), f"s{n}")[0] / "documents/part-00000.parquet") for n in (1, 2)]
    assert [len(run_step(ReadShard(shards), rank=rank)) for rank in (0, 1)] == [1, 2]


@pytest.mark.parametrize("number", [0, 1, ROWS_PER_GROUP, ROWS_PER_GROUP + 1])
def test_any_number_of_rows_is_written_in_groups(write, number):
    folder, books = write(documents(number))
    path = folder / "documents/part-00000.parquet"
    assert [document.id for document in read_documents(path)] == [f"id-{n}" for n in range(number)]
    assert pq.read_metadata(path).num_row_groups == -(-number // ROWS_PER_GROUP)
    assert (books["read"], books["kept"]) == (number, number)


def test_the_same_rows_make_the_same_bytes(write):
    made = [write(documents(1500), name)[0] for name in ("one", "other")]
    digests = [{p.relative_to(f): file_digest(p) for p in f.rglob("*.*") if p.is_file()} for f in made]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 3


def test_fields_that_the_schema_does_not_have_are_left_out(write):
    made = [Document(text="t", id="a", metadata={"warc_offset": 7, "surplus": object()})]
    folder, _ = write(made, schema=POINTER_SCHEMA)
    [row] = pq.read_table(folder / "documents/part-00000.parquet").to_pylist()
    assert row == dict.fromkeys(POINTER_SCHEMA.names) | {"id": "a", "warc_offset": 7}


def test_every_record_has_one_fate_and_the_books_balance(write, run_step):
    made = [Document(text="abcé", id=name) for name in ("k1", "r1", "f1", "e1", "k2", "r2")]
    folder, books = write(run_step(DecideById(), made))
    assert books == {
        "read": 6,
        "kept": 2,
        "text_bytes": 10,
        "removed": {"rule": 2},
        "failed": {"mishap": 1, "error:KeyError": 1},
        "measures": {},
    }
    kept = [document.id for document in read_documents(folder / "documents/part-00000.parquet")]
    lost = pq.read_table(folder / "removed/part-00000.parquet")["id"].to_pylist()
    assert (kept, lost) == (["k1", "k2"], ["r1", "f1", "e1", "r2"])


def test_what_was_removed_is_written_with_reason_value_and_excerpt(write):
    place = {"url": "u", "source": "s", "file_path": "f", "warc_offset": 9, "warc_length": 5}
    metadata = place | {"dump": "D", "date": "2024", "payload_digest": "sha1:X", FATE: removed("rule", 0.25)}
    folder, _ = write([Document(text="x" * 500, id="a", metadata=metadata)])
    [row] = pq.read_table(folder / "removed/part-00000.parquet").to_pylist()
    expected = {name: value for name, value in metadata.items() if name != FATE}
    fate = {"fate": "removed", "reason": "rule", "value": "0.25", "excerpt": "x" * 200}
    assert row == expected | fate | {"id": "a"}
    assert list(row) == REMOVED_SCHEMA.names


def test_what_was_found_out_is_noted_for_every_record_in_order(write):
    made = documents(3)
    made[0].metadata |= {NOTES: {"words": 7, "surplus": 1}, "source": "s"}
    made[1].metadata |= {NOTES: {"words": 2}, FATE: removed("few_words", 2)}
    made[2].text = "\ud800"
    folder, _ = write(made, notes=[pa.field("words", pa.int64())])
    rows = pq.read_table(folder / "annotations/part-00000.parquet").to_pylist()
    assert [(row["id"], row["fate"], row["reason"], row["words"]) for row in rows] == [
        ("id-0", "kept", None, 7),
        ("id-1", "removed", "few_words", 2),
        ("id-2", "failed", "not_unicode", None),
    ]
    assert list(rows[0]) == [*ANNOTATION_SCHEMA.names, "words"]
    assert not (write(made, "other")[0] / "annotations").exists()


def test_a_record_that_has_a_fate_is_not_decided_again(run_step):
    [document] = run_step(DecideById(), [Document(text="", id="r", metadata={FATE: failed("first")})])
    assert document.metadata[FATE].reason == "first"


def test_an_error_raised_on_purpose_stops_the_stage(run_step):
    with pytest.raises(SourceError, match="the input is broken"):
        run_step(DecideById(), [Document(text="", id="s")])


def test_a_long_error_is_cut_in_the_table():
    assert len(failed("mishap", "x" * 5000).value) == 1000


@pytest.mark.parametrize(
    ("text", "identity", "metadata", "value"),
    [
        pytest.param("ab\ud800", "a", {}, "text: lone surrogate at character 2", id="text"),
        pytest.param("ab", "\udfff", {}, "id: lone surrogate at character 0", id="id"),
        pytest.param("ab", "a", {"url": "u\ud800"}, "url: lone surrogate at character 1", id="url"),
    ],
)
def test_what_is_not_unicode_fails_and_is_on_record(write, text, identity, metadata, value):
    folder, books = write([Document(text=text, id=identity, metadata=metadata), *documents(1)])
    assert (books["read"], books["kept"], books["failed"]) == (2, 1, {"not_unicode": 1})
    [row] = pq.read_table(folder / "removed/part-00000.parquet").to_pylist()
    assert (row["fate"], row["reason"], row["value"]) == ("failed", "not_unicode", value)


def test_a_document_without_an_id_fails_or_is_written(write):
    """Whatever happens, the books are written and balance."""
    _, books = write([Document(text="t", id=None), *documents(1)])
    assert (
        books["read"] == books["kept"] + sum(books["removed"].values()) + sum(books["failed"].values()) == 2
    )


def test_measures_are_summed_over_kept_documents(write):
    made = documents(4)
    for document in made:
        document.metadata[COUNTS] = {"email_replaced": 2}
    made[0].metadata[FATE] = removed("rule")
    assert write(made)[1]["measures"] == {"email_replaced": 6}


def test_routes_get_a_file_each_even_if_it_is_empty(write):
    folder, _ = write(documents(3), route=lambda document: "left", routes=("left", "right"))
    rows = {path.name: pq.read_metadata(path).num_rows for path in (folder / "documents").iterdir()}
    assert rows == {"left-00000.parquet": 3, "right-00000.parquet": 0}


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path):
    writer = TableWriter(tmp_path / "table.parquet", POINTER_SCHEMA)
    for number in range(2500):
        writer.add({"id": str(number)})
    assert not (tmp_path / "table.parquet").exists()
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


def test_a_killed_worker_leaves_nothing_under_a_final_name(tmp_path, write):
    (tmp_path / "out").mkdir()
    worker = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], capture_output=True)
    assert worker.returncode == -9, worker.stderr.decode()
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(left) == 2
    assert all(name.startswith(".") for name in left), left
    folder, books = write(documents(2))
    assert books["kept"] == pq.read_metadata(folder / "documents/part-00000.parquet").num_rows == 2


def test_golden(write, fixed_documents):
    made = fixed_documents()
    made[3].metadata[FATE] = removed("rule", 0.25)
    folder, _ = write(made)
    rows = {path.parent.name: pq.read_table(path).to_pylist() for path in folder.rglob("part-*.parquet")}
    assert digest_of(rows) == GOLDEN, "behaviour changed: raise the version of every stage in tasks/"


def test_counting_passes_every_document_on_and_writes_how_many_there_were(tmp_path):
    passed = CountDocuments(str(tmp_path / "counts")).run(iter(documents(3)), rank=7)
    assert [document.id for document in passed] == ["id-0", "id-1", "id-2"]
    assert {path.name: path.read_text() for path in (tmp_path / "counts").iterdir()} == {"00007": "3"}


@pytest.mark.parametrize("data", [None, ()])
def test_a_rank_without_documents_counts_none(tmp_path, data):
    assert list(CountDocuments(str(tmp_path)).run(data)) == []
    assert (tmp_path / "00000").read_text() == "0"


@pytest.mark.parametrize(
    ("seconds", "seen"),
    [
        pytest.param(0.0, [1, 2, 3, 4], id="due at each document"),
        pytest.param(3600.0, [0, 0, 0, 0], id="not due before the end"),
    ],
)
def test_counts_are_written_while_documents_come_at_a_bounded_rate(tmp_path, monkeypatch, seconds, seen):
    monkeypatch.setattr("tasks.steps.shards.COUNT_SECONDS", seconds)
    path = tmp_path / "00000"
    counting = CountDocuments(str(tmp_path)).run(iter(documents(4)))
    assert [int(path.read_text()) if path.is_file() else 0 for _ in counting] == seen
    assert path.read_text() == "4"
