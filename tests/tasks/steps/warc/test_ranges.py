"""Records by pointer: from disk, HTTP and S3, in as few requests and bytes as there is sense in."""

import random
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from datatrove.data import Document

from pipeline_config.errors import SourceError, UnreachableError
from tasks.steps.sample_crawl import warc_record
from tasks.steps.shards import FATE, NOTES, POINTER_SCHEMA, WriteShard
from tasks.steps.warc.payload import Limits
from tasks.steps.warc.pointers import ReadPointers
from tasks.steps.warc.ranges import (
    MAX_GAP_BYTES,
    MAX_RANGE_BYTES,
    PAYLOAD,
    ReadRecords,
    in_ranges,
    read_range,
)

LIMITS = Limits(max_bytes=10**6)
NOISE = random.Random(7)
PAGES = {f"https://a.example/{n}": NOISE.randbytes(60_000) for n in range(40)}


class RangeServer(ThreadingHTTPServer):
    """Serves one file, with ranges unless told otherwise, and remembers the spans that it sent."""

    def __init__(self, data: bytes):
        super().__init__(("127.0.0.1", 0), RangeHandler)
        self.data, self.ranges = data, True
        self.sent: list[tuple[int, int]] = []

    @property
    def uri(self) -> str:
        """The file's address."""
        return f"http://127.0.0.1:{self.server_port}/crawl.warc.gz"

    @property
    def sent_bytes(self) -> int:
        """How much of the file was sent, over all requests."""
        return sum(end - start for start, end in self.sent)


class RangeHandler(BaseHTTPRequestHandler):
    """Answers as object stores do."""

    server: RangeServer

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.data)))
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self) -> None:
        size = len(self.server.data)
        asked = self.headers.get("Range", "") if self.server.ranges else ""
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        start = int(span[1]) if span else 0
        end = min(int(span[2]) + 1, size) if span and span[2] else size
        self.send_response(206 if span and start < size else 416 if span else 200)
        self.send_header("Content-Length", str(max(0, end - start)))
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        self.wfile.write(self.server.data[start:end])
        self.server.sent.append((start, end))

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crawl") / "crawl.warc.gz"
    path.write_bytes(b"".join(warc_record(url, html) for url, html in PAGES.items()))
    return path


@pytest.fixture
def server(crawl: Path) -> Iterator[RangeServer]:
    with RangeServer(crawl.read_bytes()) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def pointers(crawl: Path, run_step) -> list[Document]:
    return run_step(ReadPointers([str(crawl)], ["a.warc.gz"], "web", "DUMP"))


def payloads(uri: str, pointers: list[Document], limits: Limits = LIMITS) -> list[bytes]:
    reader = ReadRecords([], {"a.warc.gz": uri}, limits)
    return [document.metadata.pop(PAYLOAD)[0] for document in reader.attach(pointers)]


def test_pointers_of_a_shard_come_with_payload_and_notes(crawl, pointers, tmp_path, run_step):
    run_step(WriteShard(str(tmp_path), POINTER_SCHEMA), pointers)
    shard = str(tmp_path / "documents" / "part-00000.parquet")
    documents = run_step(ReadRecords([shard], {"a.warc.gz": str(crawl)}, LIMITS))
    assert [document.metadata[PAYLOAD][0] for document in documents] == list(PAGES.values())
    notes = {"payload_bytes": 60_000, "truncated": None, "payload_problems": None}
    assert [document.metadata[NOTES] for document in documents] == [notes] * 40


def test_a_whole_file_is_scanned_by_http_once(server, crawl, run_step):
    documents = run_step(ReadPointers([server.uri], ["a.warc.gz"], "web", "DUMP"))
    assert [document.metadata["url"] for document in documents] == list(PAGES)
    assert server.sent_bytes == len(server.data)


def test_neighbours_are_fetched_together(server, pointers):
    assert payloads(server.uri, pointers) == list(PAGES.values())
    assert server.sent == [(0, len(server.data))]


def test_distant_records_are_fetched_alone(server, pointers):
    chosen = [pointers[0], pointers[20], pointers[39]]
    assert payloads(server.uri, chosen) == [list(PAGES.values())[n] for n in (0, 20, 39)]
    assert len(server.sent) == 3
    assert server.sent_bytes == sum(pointer.metadata["warc_length"] for pointer in chosen)


def test_the_order_of_the_pointers_does_not_matter(server, pointers):
    shuffled = random.Random(1).sample(pointers, len(pointers))
    found = dict(zip((p.metadata["url"] for p in shuffled), payloads(server.uri, shuffled), strict=True))
    assert found == PAGES


def test_records_are_the_same_from_an_object_store(s3, crawl, pointers, run_step, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with s3.client() as client:
        client.put_object(Bucket=s3.name, Key="crawl.warc.gz", Body=crawl.read_bytes())
    uri = f"{s3.url}/crawl.warc.gz"
    there = run_step(ReadPointers([uri], ["a.warc.gz"], "web", "DUMP"))
    assert [d.metadata["warc_offset"] for d in there] == [d.metadata["warc_offset"] for d in pointers]
    assert payloads(uri, there) == list(PAGES.values())


def place(offset: int, length: int, path: str = "a") -> Document:
    return Document(
        text="", id="x", metadata={"file_path": path, "warc_offset": offset, "warc_length": length}
    )


@pytest.mark.parametrize(
    ("places", "ranges"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(0, 10), (10, 5)], [(0, 15)], id="adjacent"),
        pytest.param([(0, 10), (10 + MAX_GAP_BYTES, 5)], [(0, 15 + MAX_GAP_BYTES)], id="small_gap"),
        pytest.param([(0, 10), (11 + MAX_GAP_BYTES, 5)], [(0, 10), (11 + MAX_GAP_BYTES, 16 + MAX_GAP_BYTES)]),
        pytest.param([(10, 5), (0, 10)], [(10, 15), (0, 10)], id="backwards"),
        pytest.param([(0, 10), (0, 10)], [(0, 10)], id="the_same_twice"),
        pytest.param([(0, 10), (10, 5, "b")], [(0, 10), (10, 15)], id="another_file"),
        pytest.param(
            [(0, MAX_RANGE_BYTES), (MAX_RANGE_BYTES, 1)],
            [(0, MAX_RANGE_BYTES), (MAX_RANGE_BYTES, MAX_RANGE_BYTES + 1)],
            id="full",
        ),
    ],
)
def test_ranges_join_what_lies_close_together(places, ranges):
    assert [(start, end) for start, end, _ in in_ranges(place(*p) for p in places)] == ranges


def test_a_server_without_ranges_is_refused(server, pointers):
    server.ranges = False
    with pytest.raises(SourceError, match="does not serve ranges"):
        read_range(server.uri, 10, 20)


def test_storage_that_is_away_is_told_from_a_file_that_is_missing(tmp_path, bad_server):
    with pytest.raises(SourceError, match="nothing"):
        read_range(str(tmp_path / "nothing"), 0, 1)
    with pytest.raises(UnreachableError, match=r"a\.warc"):
        read_range("http://127.0.0.1:9/a.warc.gz", 0, 1)
    with pytest.raises(UnreachableError, match="503"):
        read_range(f"{bad_server}/503/a.warc.gz", 0, 1)


def test_a_file_that_became_shorter_stops_the_stage(server, crawl, pointers, tmp_path):
    server.data = server.data[:-1]
    shorter = tmp_path / "crawl.warc.gz"
    shorter.write_bytes(server.data)
    for uri in (server.uri, str(shorter)):
        with pytest.raises(SourceError, match="has become shorter"):
            payloads(uri, pointers)
    with pytest.raises(SourceError, match="has become shorter"):
        read_range(server.uri, len(server.data) + 10, len(server.data) + 20)


def test_a_payload_above_the_limit_fails_with_its_size(crawl, pointers):
    reader = ReadRecords([], {"a.warc.gz": str(crawl)}, Limits(max_bytes=50_000))
    fates = {document.metadata[FATE].reason for document in reader.attach(pointers)}
    assert fates == {"payload_too_large"}


def test_a_record_far_above_the_limit_is_not_even_fetched(server):
    reader = ReadRecords([], {"a": server.uri}, Limits(max_bytes=1000))
    [document] = reader.attach([place(0, 5_000_000)])
    assert (document.metadata[FATE].reason, server.sent) == ("payload_too_large", [])


def test_a_record_that_became_unreadable_fails_alone(crawl, pointers, tmp_path):
    damaged = tmp_path / "damaged.warc.gz"
    damaged.write_bytes(b"damaged!" + crawl.read_bytes()[8:])
    first, *others = ReadRecords([], {"a.warc.gz": str(damaged)}, LIMITS).attach(pointers)
    assert first.metadata[FATE].reason == "unreadable_record"
    assert all(PAYLOAD in document.metadata for document in others)
