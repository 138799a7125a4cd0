"""Content and transfer encodings: undone, absent though declared, cut, broken, and too large."""

import gzip
import zlib

import brotli
import pytest
import zstandard

from tasks.steps.warc.heads import parse_http_head
from tasks.steps.warc.payload import MAX_GZIP_STREAMS, Limits, RecordFailed, decode_payload

PAGE = "<!DOCTYPE html><p>Wörter, and words. </p>\n".encode() * 400
GZIPPED, ZSTD, BROTLI = gzip.compress(PAGE), zstandard.compress(PAGE), brotli.compress(PAGE)
TWO_GZIP = gzip.compress(PAGE[:99]) + gzip.compress(PAGE[99:])
TWO_ZSTD = zstandard.compress(PAGE[:99]) + zstandard.compress(PAGE[99:])
RAW = zlib.compressobj(wbits=-15)
DEFLATED = RAW.compress(PAGE) + RAW.flush()
GIF = b"GIF89a\x01\x00\x01\x00" + bytes(range(200))


def chunked(body: bytes, size: int = 100) -> bytes:
    parts = [body[n : n + size] for n in range(0, len(body), size)]
    return b"".join(b"%x; a=b\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def decode(body: bytes, *fields: str, limits: Limits = Limits()) -> tuple[bytes, list[str]]:  # noqa: B008
    head = "".join(f"{field}\r\n" for field in ("HTTP/1.1 200 OK", *fields, ""))
    return decode_payload(body, parse_http_head(head.encode(), 0), limits)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        pytest.param(PAGE, [], id="none"),
        pytest.param(PAGE, ["Content-Encoding: identity"], id="identity"),
        pytest.param(GZIPPED, ["Content-Encoding: gzip"], id="gzip"),
        pytest.param(GZIPPED, ["content-encoding: X-GZip"], id="x-gzip"),
        pytest.param(
            gzip.compress(PAGE[:99]) + gzip.compress(PAGE[99:]), ["Content-Encoding: gzip"], id="two"
        ),
        pytest.param(zlib.compress(PAGE), ["Content-Encoding: deflate"], id="zlib"),
        pytest.param(DEFLATED, ["Content-Encoding: deflate"], id="raw_deflate"),
        pytest.param(BROTLI, ["Content-Encoding: br"], id="brotli"),
        pytest.param(ZSTD, ["Content-Encoding: zstd"], id="zstd"),
        pytest.param(
            zstandard.compress(PAGE[:50]) + zstandard.compress(PAGE[50:]), ["Content-Encoding: zstd"]
        ),
        pytest.param(gzip.compress(BROTLI), ["Content-Encoding: br, gzip"], id="several"),
        pytest.param(
            gzip.compress(BROTLI), ["Content-Encoding: br", "Content-Encoding: gzip"], id="two_lines"
        ),
        pytest.param(chunked(PAGE), ["Transfer-Encoding: chunked"], id="chunked"),
        pytest.param(chunked(GZIPPED), ["Transfer-Encoding: chunked", "Content-Encoding: gzip"], id="both"),
        pytest.param(chunked(GZIPPED), ["Transfer-Encoding: gzip, chunked"], id="transfer_gzip"),
        pytest.param(chunked(PAGE).replace(b"\r\n", b"\n"), ["Transfer-Encoding: chunked"], id="lf_chunks"),
        pytest.param(PAGE, ["X-Crawl-Content-Encoding: gzip"], id="decoded_by_the_crawler"),
    ],
)
def test_encodings_are_undone(body, fields):
    assert decode(body, *fields) == (PAGE, [])


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        pytest.param(PAGE, "Content-Encoding: gzip", "not gzip", id="gzip"),
        pytest.param(PAGE, "Content-Encoding: deflate", "not deflate", id="deflate"),
        pytest.param(PAGE, "Content-Encoding: br", "not br", id="br"),
        pytest.param(PAGE, "Content-Encoding: zstd", "not zstd", id="zstd"),
        pytest.param(GIF, "Content-Encoding: br", "not br", id="binary"),
        pytest.param(PAGE, "Transfer-Encoding: chunked", "not chunked", id="chunked"),
        pytest.param(PAGE, "Content-Encoding: UTF-8", "unknown encoding utf-8", id="unknown"),
    ],
)
def test_a_body_that_is_not_encoded_as_declared_is_taken_as_it_is(body, field, problem):
    assert decode(body, field) == (body, [problem])


def test_gzip_is_recognised_under_another_name():
    assert decode(GZIPPED, "Content-Encoding: br") == (PAGE, ["gzip declared as br"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param(GZIPPED[:-30], "Content-Encoding: gzip", id="gzip"),
        pytest.param(zlib.compress(PAGE)[:-30], "Content-Encoding: deflate", id="deflate"),
        pytest.param(GZIPPED[:-8] + b"\0" * 8, "Content-Encoding: gzip", id="wrong_digest"),
        pytest.param(chunked(PAGE)[:-60], "Transfer-Encoding: chunked", id="chunked"),
        pytest.param(chunked(PAGE)[:777] + b"junk", "Transfer-Encoding: chunked", id="junk"),
    ],
)
def test_what_can_be_decoded_of_a_broken_body_is_kept(body, field):
    payload, [problem] = decode(body, field)
    assert len(payload) > 100
    assert PAGE.startswith(payload)
    assert problem


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        pytest.param("gzip", gzip.compress, id="gzip"),
        pytest.param("deflate", zlib.compress, id="deflate"),
        pytest.param("br", brotli.compress, id="brotli"),
        pytest.param("zstd", zstandard.compress, id="zstd"),
    ],
)
def test_a_bomb_is_stopped_at_the_limit(name, encode):
    names = {
        gzip.compress: "gzip",
        brotli.compress: "br",
        zstandard.compress: "zstd",
        zlib.compress: "deflate",
    }
    name = names[encode]
    bomb = encode(bytes(30_000_000))
    with pytest.raises(RecordFailed, match="payload_too_large"):
        decode(bomb, f"Content-Encoding: {name}", limits=Limits(5_000_000, 1e9))
    with pytest.raises(RecordFailed, match="decompression_bomb"):
        decode(bomb, f"Content-Encoding: {name}", limits=Limits(50_000_000, 10))


def test_a_large_ratio_is_no_bomb_while_the_page_is_small():
    assert decode(gzip.compress(bytes(500_000)), "Content-Encoding: gzip", limits=Limits(10**7, 10))[1] == []


def test_a_body_that_was_never_encoded_is_measured_too():
    with pytest.raises(RecordFailed, match="payload_too_large"):
        decode(PAGE, limits=Limits(100, 10))


def test_very_many_gzip_streams_end_the_body():
    payload, [problem] = decode(gzip.compress(b"a") * (MAX_GZIP_STREAMS + 5), "Content-Encoding: gzip")
    assert (payload, "streams" in problem) == (b"a" * MAX_GZIP_STREAMS, True)


def test_very_many_encodings_are_not_all_undone():
    payload, problems = decode(PAGE, "Content-Encoding: " + ", ".join(["gzip"] * 1000))
    assert payload == PAGE
    assert len(problems) < 10


@pytest.mark.parametrize("before", [" ", "\t", "\r", "\x0c"])
def test_a_field_with_something_odd_before_its_name_is_found(before):
    head = parse_http_head(f"HTTP/1.1 200 OK\r\n{before}Content-Encoding: gzip\r\n\r\n".encode(), 0)
    assert decode_payload(gzip.compress(b"text"), head, Limits()) == (b"text", [])
