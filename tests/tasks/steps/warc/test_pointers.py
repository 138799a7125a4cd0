"""Pointers: what they carry, which records have one, and files that hold none."""

import gzip

import pytest

from pipeline_config.errors import SourceError, UnreachableError
from tasks.steps.sample_crawl import warc_record
from tasks.steps.shards import FATE, NOTES
from tasks.steps.warc.pointers import HTTP_HEAD, ReadPointers, read_pointers
from tasks.steps.warc.records import read_record

PAGES = {f"https://a.example/{n}": b"<p>page %d</p>" % n * (n + 1) for n in range(5)}
MEMBERS = [warc_record(url, html) for url, html in PAGES.items()]
WHOLE = b"".join(MEMBERS)
HTML = b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n" * 20


def other_record(kind: str) -> bytes:
    return gzip.compress(
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{kind}>\r\n"
        "Content-Type: text/plain\r\nContent-Length: 4\r\n\r\nabcd\r\n\r\n".encode()
    )


@pytest.fixture
def read(tmp_path, run_step):
    """Runs the step on a file with these bytes."""

    def run(data: bytes):
        path = tmp_path / "crawl.warc.gz"
        path.write_bytes(data)
        return run_step(ReadPointers([str(path)], ["seg/a.warc.gz"], "web", "DUMP"))

    return run


def fates(documents) -> list[tuple[str, str] | None]:
    found = [document.metadata.get(FATE) for document in documents]
    return [fate and (fate.kind, fate.reason) for fate in found]


def test_the_bytes_that_a_pointer_names_are_its_page(tmp_path):
    (tmp_path / "a.warc.gz").write_bytes(WHOLE)
    found = {}
    for pointer in read_pointers(str(tmp_path / "a.warc.gz")):
        start = pointer["warc_offset"]
        found[pointer["url"]] = read_record(WHOLE[start : start + pointer["warc_length"]]).payload
    assert found == PAGES


def test_a_pointer_carries_the_fields_of_its_record(warc_file):
    [pointer] = read_pointers(str(warc_file({"https://a.example/": b"hello"})))
    assert pointer.pop(HTTP_HEAD).get("content-length") == "5"
    assert pointer == {
        "id": "urn:uuid:44cc82eb-7cb9-5fdc-b087-010025d94c3f",
        "url": "https://a.example/",
        "date": "2000-01-01T00:00:00Z",
        "payload_digest": "sha1:VL2MMHO4YXUKFWV63YHTWSBM3GXKSQ2N",
        "payload_type": "text/html",
        "record_type": "response",
        "warc_offset": 0,
        "warc_length": len(warc_record("https://a.example/", b"hello")),
        NOTES: {"http_status": 200, "mime": "text/html", "truncated": None},
    }


def test_pages_have_pointers_and_other_records_have_none(read):
    pages = ["response", "resource", "revisit", "conversion"]
    kinds = ["warcinfo", "request", "metadata", "continuation", *pages]
    documents = read(b"".join(map(other_record, kinds)))
    found = [document.metadata["record_type"] for document in documents]
    assert found == pages
    assert fates(documents) == [None, None, None, ("removed", "conversion")]


def test_records_of_no_known_type_are_on_record(read):
    documents = read(other_record("screenshot") + other_record(""))
    assert fates(documents) == [("removed", "record_type"), ("failed", "damaged")]
    assert documents[0].metadata[FATE].value == "screenshot"


def test_a_file_without_pages_is_read_and_gives_none(read):
    assert read(other_record("warcinfo") + other_record("request")) == []


def test_damage_is_one_failed_record_with_its_place(read):
    documents = read(MEMBERS[0] + MEMBERS[1][:200] + HTML + MEMBERS[2] + MEMBERS[3][:-1])
    assert fates(documents) == [None, ("failed", "damaged"), None, ("failed", "cut_off")]
    assert [document.metadata["url"] for document in documents] == list(PAGES)[:4]
    ends = [d.metadata["warc_offset"] + d.metadata["warc_length"] for d in documents]
    assert [document.metadata["warc_offset"] for document in documents] == [0, *ends[:-1]]


def test_damage_before_the_first_record_is_not_forgotten(read):
    assert fates(read(HTML + MEMBERS[0])) == [("failed", "damaged"), None]


def test_records_that_share_a_member_fail_with_what_to_do(read):
    documents = read(gzip.compress(b"".join(map(gzip.decompress, MEMBERS[:2]))))
    assert fates(documents) == [("failed", "not_separable")] * 2
    assert "warcio recompress" in documents[0].metadata[FATE].value


@pytest.mark.parametrize(
    "data", [b"", HTML, gzip.compress(HTML), bytes(5000)], ids=["empty", "page", "compressed page", "zeros"]
)
def test_a_file_that_holds_no_record_is_refused_by_name(read, data):
    with pytest.raises(SourceError, match=r"crawl\.warc\.gz is not a WARC file"):
        read(data)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"there is no file .*nothing\.warc\.gz"):
        list(read_pointers(str(tmp_path / "nothing.warc.gz")))


def test_an_error_of_the_disk_is_not_called_damage(tmp_path):
    with pytest.raises(IsADirectoryError):
        list(read_pointers(str(tmp_path)))


def test_records_without_an_id_are_named_by_file_and_offset(read):
    nameless = gzip.decompress(MEMBERS[0]).split(b"\r\n")
    member = gzip.compress(b"\r\n".join(line for line in nameless if not line.startswith(b"WARC-Record-ID")))
    one, other = read(member + MEMBERS[1])
    assert one.id == "seg/a.warc.gz#0"
    assert other.id.startswith("urn:uuid:")
    assert one.metadata | {"source": "web", "dump": "DUMP", "file_path": "seg/a.warc.gz"} == one.metadata


@pytest.mark.parametrize(
    ("place", "error"),
    [
        pytest.param("http://127.0.0.1:9", UnreachableError, id="no server"),
        pytest.param("{server}/503", UnreachableError, id="busy"),
        pytest.param("{server}/cut", UnreachableError, id="broken off"),
        pytest.param("{server}/403", SourceError, id="forbidden"),
    ],
)
def test_storage_that_does_not_answer_is_told_from_a_bad_file(bad_server, place, error):
    uri = f"{place.format(server=bad_server)}/a.warc.gz"
    with pytest.raises((SourceError, UnreachableError), match=uri) as caught:
        list(read_pointers(uri))
    assert type(caught.value) is error
