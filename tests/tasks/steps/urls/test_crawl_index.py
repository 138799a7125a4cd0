"""Common Crawl's index: rows as pointers, the choice among them, and files that are none."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.errors import SourceError, UnreachableError
from pipeline_config.settings import IndexFilter
from tasks.steps.shards import FATE, NOTES, POINTER_SCHEMA, WriteShard, failed, removed
from tasks.steps.urls.crawl_index import INDEX_NOTES, FilterIndex, ReadIndex, read_index
from tasks.steps.warc.pointers import POINTER_NOTES

ROW = {
    "url": "https://a.example/",
    "fetch_time": datetime.datetime(2024, 2, 20, 21, 10, 55, tzinfo=datetime.UTC),
    "fetch_status": 200,
    "content_digest": "AUF3LSPXMTVI75CZ2AHIG52KZVXCIVHX",
    "content_mime_type": "text/html",
    "content_mime_detected": "application/xhtml+xml",
    "content_languages": "eng,deu",
    "warc_filename": "crawl/a.warc.gz",
    "warc_record_offset": 100,
    "warc_record_length": 20,
    "url_surtkey": "example,a)/",
}


@pytest.fixture
def index(tmp_path):
    """Writes an index file of rows, each `ROW` with changes."""

    def write(*changes: dict, groups: int = 100) -> str:
        path = tmp_path / "part-0.parquet"
        pq.write_table(
            pa.Table.from_pylist([ROW | change for change in changes]), path, row_group_size=groups
        )
        return str(path)

    return write


def test_a_row_is_a_pointer(index, run_step):
    [pointer] = run_step(ReadIndex([index({})], "web", "DUMP"))
    assert pointer.id == "crawl/a.warc.gz#100"
    assert pointer.metadata == {
        "url": "https://a.example/",
        "date": "2024-02-20T21:10:55Z",
        "payload_digest": "sha1:AUF3LSPXMTVI75CZ2AHIG52KZVXCIVHX",
        "payload_type": "application/xhtml+xml",
        "record_type": "response",
        "file_path": "crawl/a.warc.gz",
        "warc_offset": 100,
        "warc_length": 20,
        NOTES: {"http_status": 200, "mime": "text/html", "languages": "eng,deu"},
        "source": "web",
        "dump": "DUMP",
    }


def test_the_rows_of_a_row_group_come_in_the_order_of_their_records(index):
    places = [("b", 1), ("a", 9), ("a", 2), ("c", 0), ("b", 0)]
    rows = [{"warc_filename": name, "warc_record_offset": offset} for name, offset in places]
    found = [(row["warc_filename"], row["warc_record_offset"]) for row in read_index(index(*rows, groups=3))]
    assert found == [("a", 2), ("a", 9), ("b", 1), ("b", 0), ("c", 0)]


@pytest.mark.parametrize(
    ("chosen", "row", "fate"),
    [
        ({}, {"fetch_status": 404}, None),
        ({"statuses": (200, 203)}, {}, None),
        ({"statuses": (200,)}, {"fetch_status": 404}, removed("index_status", 404)),
        ({"statuses": (200,)}, {"fetch_status": None}, removed("index_status", None)),
        ({"mimes": ("text/html",)}, {}, removed("index_mime", "application/xhtml+xml")),
        ({"mimes": ("text/html",)}, {"content_mime_detected": None}, None),
        ({"languages": ("deu",)}, {}, None),
        ({"languages": ("fra",)}, {}, removed("index_language", "eng,deu")),
        ({"languages": ("fra",)}, {"content_languages": None}, None),
        (
            {"languages": ("fra",), "keep_unknown_language": False},
            {"content_languages": None},
            removed("index_language", "unknown"),
        ),
    ],
)
def test_rows_are_chosen_by_what_the_index_says(index, run_step, chosen, row, fate):
    path = index({"url": "https://b.example/", "content_languages": "fra"}, row)
    documents = run_step(FilterIndex(IndexFilter(**chosen)), run_step(ReadIndex([path], "web", "")))
    found = {document.metadata["url"]: document.metadata.get(FATE) for document in documents}
    assert found["https://a.example/"] == fate


@pytest.mark.parametrize(
    "row",
    [
        {"warc_filename": None},
        {"warc_filename": ""},
        {"warc_record_offset": -1},
        {"warc_record_offset": None},
        {"warc_record_length": 0},
    ],
)
def test_a_row_that_names_no_record_fails_by_itself(index, run_step, tmp_path, row):
    read = run_step(ReadIndex([index({}, row)], "web", ""))
    writer = WriteShard(str(tmp_path / "out"), POINTER_SCHEMA, notes=[*POINTER_NOTES, *INDEX_NOTES])
    fates = [d.metadata.get(FATE) for d in run_step(writer, read)]
    assert len(fates) == 2
    (fate,) = filter(None, fates)
    assert fate == failed("bad_index_row", fate.value)
    assert pq.read_table(tmp_path / "out" / "removed")["reason"].to_pylist() == ["bad_index_row"]


def test_a_revisit_is_known_by_its_type(index, run_step):
    [pointer] = run_step(ReadIndex([index({"content_mime_type": "warc/revisit"})], "web", ""))
    assert pointer.metadata["record_type"] == "revisit"


def test_columns_that_are_merely_useful_may_be_missing(tmp_path, run_step):
    needed = ("url", "warc_filename", "warc_record_offset", "warc_record_length")
    pq.write_table(pa.Table.from_pylist([{name: ROW[name] for name in needed}]), tmp_path / "a.parquet")
    [pointer] = run_step(ReadIndex([str(tmp_path / "a.parquet")], "web", ""))
    assert pointer.metadata["date"] == ""
    assert "payload_digest" not in pointer.metadata


def test_a_file_that_is_no_index_is_named(tmp_path, index):
    (tmp_path / "text.parquet").write_text("no Parquet " * 100)
    pq.write_table(pa.table({"url": ["x"]}), tmp_path / "other.parquet")
    whole = Path(index({})).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    for name, message in {
        "text": "no Parquet file",
        "other": "no column warc_filename, warc_record_offset",
        "cut": "no Parquet file",
        "nothing": "there is no file",
    }.items():
        with pytest.raises(SourceError, match=rf"{message}|{name}.*{message}"):
            list(read_index(str(tmp_path / f"{name}.parquet")))


def test_an_index_whose_server_is_away_is_worth_another_try(bad_server):
    for place in ("http://127.0.0.1:9", f"{bad_server}/503"):
        with pytest.raises(UnreachableError):
            list(read_index(f"{place}/a.parquet"))
