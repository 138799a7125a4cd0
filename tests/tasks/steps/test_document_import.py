"""Documents that exist already: formats, damaged files, odd records, field mapping."""

import bz2
import gzip
import json
import lzma
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline_config.errors import SourceError, UnreachableError
from pipeline_config.settings import FieldMapping, Source
from tasks.steps.document_import import ReadDocuments, read_jsonl, read_parquet, reader_of
from tasks.steps.shards import FATE, WriteShard

GOLDEN = "80e98b7460f77f5b1baed532e8fa1dee7ac4c28a1cb82910f7bea9d98df46583"
RECORDS = [{"id": f"r{n}", "text": f"text {n} — ünï", "url": f"https://a.example/{n}"} for n in range(5)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def source_of(**settings) -> Source:
    return Source.model_validate(
        {"name": "books", "kind": "documents", "uris": ["*"], "dump": "D"} | settings
    )


@pytest.fixture
def read(tmp_path, run_step):
    """Writes a file and reads its documents."""

    def run(data: bytes, name: str = "a.jsonl", **fields) -> list:
        (tmp_path / name).write_bytes(data)
        source = source_of(fields=FieldMapping(**fields))
        return run_step(ReadDocuments(source, [str(tmp_path / name)], [f"set/{name}"]))

    return run


def fates(documents: list) -> list[tuple[str, str, str] | None]:
    found = [document.metadata.get(FATE) for document in documents]
    return [fate and (fate.kind, fate.reason, fate.value) for fate in found]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json"])
def test_json_lines_are_read_plain_and_compressed(read, name, suffix):
    documents = read(COMPRESS[suffix](LINES), name + suffix)
    assert [(d.id, d.text, d.metadata["url"]) for d in documents] == [tuple(r.values()) for r in RECORDS]


def test_parquet_is_read(read, tmp_path):
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "p", row_group_size=2)
    documents = read((tmp_path / "p").read_bytes(), "a.parquet")
    assert [(document.id, document.text) for document in documents] == [(r["id"], r["text"]) for r in RECORDS]


def test_several_members_and_frames_are_one_file(read):
    for suffix in (".gz", ".xz", ".zst"):
        halves = LINES.splitlines(keepends=True)
        data = COMPRESS[suffix](b"".join(halves[:2])) + COMPRESS[suffix](b"".join(halves[2:]))
        assert [document.id for document in read(data, f"a.jsonl{suffix}")] == [r["id"] for r in RECORDS]


def test_a_document_knows_where_it_comes_from(read):
    [document, *_] = read(LINES)
    digest = document.metadata.pop("payload_digest")
    assert digest.startswith("sha256:")
    assert document.metadata == {
        "url": "https://a.example/0",
        "source": "books",
        "dump": "D",
        "file_path": "set/a.jsonl",
    }


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_local_dataset_is_read_once_over_all_shards(tmp_path, run_step, shards):
    (tmp_path / "train.jsonl").write_bytes(LINES)
    source = source_of(uris=[], dataset=str(tmp_path), revision="1", dataset_shards=shards)
    step = ReadDocuments(source, [], [])
    ids = [document.id for rank in range(shards) for document in run_step(step, rank=rank)]
    assert Counter(ids) == Counter(record["id"] for record in RECORDS)


@pytest.mark.parametrize(
    "change",
    [{"dataset_split": "test"}, {"dataset_config": "no-such"}, {"dataset": "/no/such/folder"}],
    ids=["split", "config", "folder"],
)
def test_a_dataset_that_cannot_be_had_is_named(tmp_path, monkeypatch, run_step, change):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "train.jsonl").write_bytes(LINES)
    source = source_of(**{"uris": [], "dataset": str(tmp_path), "revision": "1"} | change)
    with pytest.raises(SourceError, match=r"dataset .* \(revision 1, split \w+\) cannot be read"):
        run_step(ReadDocuments(source, [], []))


@pytest.mark.parametrize(
    ("line", "fate"),
    [
        pytest.param(b"{not json", ("failed", "not_json"), id="not_json"),
        pytest.param(b'{"text": "cut', ("failed", "not_json"), id="cut_line"),
        pytest.param(b'{"text": "\xff"}', ("failed", "not_json"), id="not_utf-8"),
        pytest.param(b'{"text": "\\ud800"}', ("failed", "not_json"), id="lone_surrogate"),
        pytest.param(b'["text"]', ("failed", "not_an_object"), id="array"),
        pytest.param(b'"text"', ("failed", "not_an_object"), id="string"),
        pytest.param(b"null", ("failed", "not_an_object"), id="null"),
        pytest.param(b"{}", ("failed", "no_text_field"), id="no_field"),
        pytest.param(b'{"Text": "a"}', ("failed", "no_text_field"), id="another_field"),
        pytest.param(b'{"text": null}', ("failed", "no_text_field"), id="null_text"),
        pytest.param(b'{"text": 5}', ("failed", "text_is_no_string"), id="number"),
        pytest.param(b'{"text": ["a", "b"]}', ("failed", "text_is_no_string"), id="list"),
        pytest.param(b'{"text": ""}', ("removed", "empty"), id="empty_text"),
        pytest.param(b'{"text": " \\n\\t"}', ("removed", "empty"), id="blank_text"),
        pytest.param(b'{"text": "a"}', None, id="good"),
    ],
)
def test_an_odd_line_has_a_fate_of_its_own(read, tmp_path, run_step, line, fate):
    documents = read(LINES + line + b"\n" + LINES)
    found = [fate and fate[:2] for fate in fates(documents)]
    assert found == [None] * len(RECORDS) + [fate] + [None] * len(RECORDS)
    run_step(WriteShard(str(tmp_path)), documents)
    books = json.loads((tmp_path / "shards/00000.json").read_text())
    assert (
        books["read"] == books["kept"] + sum(books["removed"].values()) + sum(books["failed"].values()) == 11
    )


def test_a_lone_surrogate_that_a_dataset_yields_fails_as_not_unicode(tmp_path, run_step, read):
    documents = read(LINES)
    documents[1].text = "a\ud800"
    run_step(WriteShard(str(tmp_path)), documents)
    books = json.loads((tmp_path / "shards/00000.json").read_text())
    assert (books["kept"], books["failed"]) == (4, {"not_unicode": 1})


def test_a_failure_names_its_line_and_what_the_record_has(read):
    assert fates(read(LINES + b"[1]\n"))[-1][2] == "line 6: list"
    assert fates(read(b'{"b": 1, "a": 2}\n'))[0][2] == "no field 'text'; the record has: a, b"


def test_blank_lines_and_a_missing_last_line_break_are_no_records(read):
    assert len(read(b"\n" + LINES.strip() + b"\n\n")) == len(read(LINES.rstrip(b"\n"))) == len(RECORDS)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        pytest.param("a.jsonl.gz", gzip.compress(LINES)[:-20], "cannot be read after line", id="cut_gz"),
        pytest.param("a.jsonl.xz", lzma.compress(LINES)[:-20], "cannot be read after line", id="cut_xz"),
        pytest.param("a.jsonl.zst", zstandard.compress(LINES * 99)[:-20], "cannot be read", id="cut_zst"),
        pytest.param("a.jsonl.gz", LINES, "cannot be read after line 0", id="not_gz"),
        pytest.param("a.jsonl.xz", LINES, "cannot be read after line 0", id="not_xz"),
        pytest.param("a.jsonl.zst", LINES, "cannot be read after line 0", id="not_zst"),
        pytest.param("a.jsonl", b"", "is empty", id="empty"),
        pytest.param("a.jsonl.gz", gzip.compress(b""), "is empty", id="empty_gz"),
        pytest.param("a.parquet", LINES, "cannot be read as Parquet", id="not_parquet"),
        pytest.param("a.parquet", b"", "cannot be read as Parquet", id="empty_parquet"),
        pytest.param("a.csv", LINES, "not from this", id="csv"),
        pytest.param("a.jsonl.bz2", bz2.compress(LINES), "not from this", id="bz2"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused_by_name(read, tmp_path, name, data, message):
    with pytest.raises(SourceError, match=message) as caught:
        read(data, name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_missing_file_is_named(tmp_path, run_step, name):
    with pytest.raises(SourceError, match=f"there is no file .*{name}"):
        run_step(ReadDocuments(source_of(), [str(tmp_path / name)], [name]))


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("a.JSONL.gz", None),
        ("x.y.jsonl.zst", "jsonl"),
        ("s3://b/a.parquet", "parquet"),
        ("a.parquet.gz", None),
    ],
)
def test_the_format_follows_from_the_name(name, reader):
    if reader is None:
        with pytest.raises(SourceError, match="documents are read from"):
            reader_of(name)
    else:
        assert reader_of(name) == reader


@pytest.mark.parametrize(
    ("fields", "identity", "text", "metadata"),
    [
        pytest.param({}, "7", "t", {"url": "u", "date": "2001"}, id="the_usual_names"),
        pytest.param({"text": "body"}, "7", "b", {"url": "u", "date": "2001"}, id="text"),
        pytest.param({"id": "key"}, "k", "t", {"url": "u", "date": "2001"}, id="id"),
        pytest.param({"id": None}, "books/set/a.jsonl/0", "t", {"url": "u", "date": "2001"}, id="no_id"),
        pytest.param({"id": "x"}, "books/set/a.jsonl/0", "t", {"url": "u", "date": "2001"}, id="absent_id"),
        pytest.param({"url": "link", "date": None}, "7", "t", {"url": "l"}, id="url_and_no_date"),
        pytest.param({"url": "x", "date": "x"}, "7", "t", {}, id="absent_url_and_date"),
    ],
)
def test_fields_are_mapped(read, fields, identity, text, metadata):
    record = {
        "id": 7,
        "key": "k",
        "text": "t",
        "body": "b",
        "url": "u",
        "link": "l",
        "date": 2001,
        "none": None,
    }
    [document] = read(json.dumps(record).encode(), **fields)
    assert (document.id, document.text) == (identity, text)
    assert {n: v for n, v in document.metadata.items() if n in ("url", "date")} == metadata


def test_ids_made_for_records_without_one_differ(read):
    documents = read(b'{"text": "a"}\n\n{"text": "a"}\n[]\n{"text": "b"}\n')
    assert len({document.id for document in documents}) == 4


def test_golden(read, behaviour):
    data = LINES + b'{"text": 5}\n[]\n{"text": " "}\n{"text": "no id"}\n'
    assert behaviour(read(data)) == GOLDEN, "behaviour changed: raise the version in tasks/document_import.py"


@pytest.mark.parametrize(
    ("place", "error"),
    [
        pytest.param("http://127.0.0.1:9", UnreachableError, id="no server"),
        pytest.param("{server}/503", UnreachableError, id="busy"),
        pytest.param("{server}/cut", UnreachableError, id="broken off"),
        pytest.param("{server}/403", SourceError, id="forbidden"),
    ],
)
@pytest.mark.parametrize("read", [read_jsonl, read_parquet])
def test_storage_that_does_not_answer_is_told_from_a_bad_file(bad_server, read, place, error):
    uri = f"{place.format(server=bad_server)}/a"
    with pytest.raises((SourceError, UnreachableError), match=uri) as caught:
        list(read(uri))
    assert type(caught.value) is error
