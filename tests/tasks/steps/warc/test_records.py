"""Heads of records, and one record by its bytes."""

import gzip
import hashlib

import pytest

from tasks.steps.sample_crawl import warc_record
from tasks.steps.warc.heads import parse_head, parse_http_head
from tasks.steps.warc.payload import Limits, RecordFailed
from tasks.steps.warc.records import read_record

PAGE = b"<p>hello</p>"
HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Robots-Tag: noai\r\n\r\n" + PAGE
ARC = b"http://a.example/with space 10.0.0.1 20080430204826 text/html %d\n" % len(HTTP)


def record(block: bytes = HTTP, kind: str = "response", length: int | None = None, **fields: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    head = "\r\n".join(["WARC/1.0", f"WARC-Type: {kind}", *lines])
    length = len(block) if length is None else length
    return head.encode() + b"\r\nContent-Length: %d\r\n\r\n" % length + block + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "payload", "content_type"),
    [
        pytest.param(
            warc_record("https://a.example/", b"<p>hello</p>"), b"<p>hello</p>", "text/html; charset=utf-8"
        ),
        pytest.param(record(), PAGE, "text/html", id="not_compressed"),
        pytest.param(
            record(b"<p>", "resource", Content_Type="text/html"), b"<p>", "text/html", id="resource"
        ),
        pytest.param(
            record(b"text", "conversion", Content_Type="text/plain"), b"text", "text/plain", id="wet"
        ),
        pytest.param(record(b"<p>"), b"<p>", "", id="no_http_head"),
        pytest.param(record(b"HTTP/1.1 204\r\n\r\n"), b"", "", id="no_body"),
        pytest.param(record(b"HTTP/1.1 200 OK\r\nA: b"), b"", "", id="a_head_alone"),
        pytest.param(record(HTTP, "revisit"), b"", "text/html", id="revisit"),
        pytest.param(
            record(b"GET / HTTP/1.1\r\n\r\n", "request"), b"GET / HTTP/1.1\r\n\r\n", "", id="request"
        ),
        pytest.param(record(HTTP.replace(b"\r\n", b"\n")), PAGE, "text/html", id="lf_only"),
        pytest.param(record().replace(b"\r\n", b"\n", 3), PAGE, "text/html", id="lf_in_the_warc_head"),
        pytest.param(record().replace(b"WARC-Type", b"warc-TYPE"), PAGE, "text/html", id="case"),
        pytest.param(ARC + HTTP + b"\n", PAGE, "text/html", id="arc"),
        pytest.param(gzip.compress(ARC + HTTP + b"\n"), PAGE, "text/html", id="compressed_arc"),
    ],
)
def test_a_record_gives_payload_and_content_type(data, payload, content_type):
    found = read_record(data)
    assert (found.payload, found.content_type, found.problems) == (payload, content_type, ())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"junk" * 10, id="junk"),
        pytest.param(warc_record("https://a.example/", b"x")[:-9], id="cut_off"),
        pytest.param(warc_record("https://a.example/", b"x")[:-8] + b"\0" * 8, id="wrong_crc"),
        pytest.param(gzip.compress(b"<html>"), id="no_record_inside"),
        pytest.param(b"\x28\xb5\x2f\xfd" + b"x" * 20, id="broken_zstd"),
        pytest.param(b"\x04\x22\x4d\x18" + b"x" * 20, id="broken_lz4"),
        pytest.param(b"WARC/1.0\r\nWARC-Type: response\r\n", id="head_without_end"),
    ],
)
def test_bytes_that_are_no_record_are_refused(data):
    with pytest.raises(RecordFailed, match="unreadable_record"):
        read_record(data)


@pytest.mark.parametrize("length", [3, 10_000], ids=["short", "long"])
def test_a_wrong_length_is_named_and_the_block_taken_whole(length):
    found = read_record(record(length=length))
    assert (found.payload, len(found.problems)) == (b"<p>hello</p>", 1)


def test_a_wrong_length_and_another_digest_is_a_damaged_record():
    right, wrong = hashlib.sha1(HTTP).hexdigest(), hashlib.sha1(b"").hexdigest()
    assert read_record(record(length=1, WARC_Block_Digest=f"sha1:{right}")).payload == b"<p>hello</p>"
    with pytest.raises(RecordFailed, match="another digest"):
        read_record(record(length=1, WARC_Block_Digest=f"sha1:{wrong}"))


@pytest.mark.parametrize(
    "data", [record(b"x" * 5_000_000), gzip.compress(record(bytes(9_000_000)))], ids=["plain", "compressed"]
)
def test_a_record_above_the_limit_is_refused(data):
    with pytest.raises(RecordFailed, match="payload_too_large"):
        read_record(data, Limits(max_bytes=1_000_000))


@pytest.mark.parametrize(
    ("fields", "truncated"),
    [
        pytest.param({}, "", id="whole"),
        pytest.param({"WARC_Truncated": "length"}, "length", id="truncated"),
        pytest.param({"WARC_Segment_Number": "1"}, "segmented", id="first_segment"),
    ],
)
def test_a_part_of_a_page_says_so(fields, truncated):
    assert read_record(record(**fields)).truncated == truncated


def test_http_heads_are_read_as_servers_write_them():
    head = parse_http_head(
        b"http/1.1 404\r\nx-robots-tag: noai\r\nX-Robots-Tag : no\xefndex\r\nFolded: a\r\n\tb\r\nno colon\r\n"
        b"Big: " + b"x" * 130_000 + b"\r\nEmpty:\r\n\r\nbody",
        0,
    )
    assert (head.status, head.all("x-robots-tag"), head.get("folded")) == (404, ["noai", "noïndex"], "a b")
    assert (len(head.get("big")), head.get("empty"), head.get("missing")) == (130_000, "", "")


@pytest.mark.parametrize("line", ["HTTP/1.1", "HTTP/1.1 OK", "HTTP/1.1 20", "HTTP/1.1 2000 OK"])
def test_a_status_that_is_none_is_none(line):
    assert parse_http_head(f"{line}\r\n\r\n".encode(), 0).status is None


def test_bytes_that_are_not_utf_8_do_not_lose_the_field():
    head = parse_head(record(WARC_Target_URI="https://a.example/Ã").replace("Ã".encode(), b"\xc3"))
    assert head.get("warc-target-uri") == "https://a.example/Ã"


def test_an_arc_line_gives_the_fields_of_a_warc_head():
    head = parse_head(ARC)
    assert (head.kind, head.length) == ("response", len(HTTP))
    names = ("warc-target-uri", "warc-ip-address", "warc-date", "content-type")
    assert [head.get(name) for name in names] == [
        "http://a.example/with space",
        "10.0.0.1",
        "2008-04-30T20:48:26Z",
        "text/html",
    ]
