"""The walk through WARC and ARC files: every record where it lies, every damage once, nothing else lost."""

import gzip
import hashlib
import io
import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from fastwarc.stream_io import Lz4Writer

from tasks.steps.sample_crawl import warc_record
from tasks.steps.warc import walk as module
from tasks.steps.warc.heads import PAGE_KINDS
from tasks.steps.warc.records import read_record
from tasks.steps.warc.walk import Found, walk

URLS = [f"https://a.example/{n}" for n in range(5)]
NOISE = random.Random(3)
MEMBERS = [warc_record(url, NOISE.randbytes(200 * n) + b"<p>%d</p>" % n) for n, url in enumerate(URLS)]
RECORDS = [gzip.decompress(member) for member in MEMBERS]
WHOLE, PLAIN = b"".join(MEMBERS), b"".join(RECORDS)
HTML = b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n" * 20
ALL = [(n, None) for n in range(5)]
BEFORE = len(b"".join(MEMBERS[:2]))
# Real files in which both other readers lose records, and one whose record lies in several gzip members
KINDS = {
    "aut__badexample.arc.gz": {"arc_header": 1, "response": 4},
    "iawebcommons__IAH-20080430204825-00000-blackbook-truncated.arc": {"arc_header": 1, "response": 8},
    "warcio__example-wrong-chunks.warc.gz": {"response": 1, "request": 1, None: 1},
}


def lz4(data: bytes) -> bytes:
    stream = io.BytesIO()
    writer = Lz4Writer(stream)
    writer.write(data)
    writer.close()
    return stream.getvalue()


def with_lf_head(record: bytes) -> bytes:
    head, end, block = record.partition(b"\r\n\r\n")
    return (head + end).replace(b"\r\n", b"\n") + block


def found_in(data: bytes) -> list[Found]:
    return list(walk(io.BytesIO(data), len(data)))


def outline(data: bytes) -> list[tuple[int | None, str | None]]:
    """(number of the page, reason why it fails) of all that is found; what can be read alone is read."""
    lines = []
    for found in found_in(data):
        url = found.head.get("warc-target-uri") if found.head else None
        if not found.failure:
            record = read_record(data[found.offset : found.offset + found.length])
            assert record.head.get("warc-target-uri") == url
        lines.append((URLS.index(url) if url else None, found.failure and found.failure[0]))
    return lines


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(WHOLE, id="members"),
        pytest.param(PLAIN, id="plain"),
        pytest.param(b"".join(MEMBERS[:2] + RECORDS[2:4] + MEMBERS[4:]), id="mixed"),
        pytest.param(b"".join(zstandard.compress(record) for record in RECORDS), id="zstd"),
        pytest.param(b"".join(map(lz4, RECORDS)), id="lz4"),
        pytest.param(b"".join(map(with_lf_head, RECORDS)), id="lf_only"),
        pytest.param(b"".join(member + gzip.compress(b"") for member in MEMBERS), id="empty_members"),
        pytest.param(b"\r\n\r\n".join(RECORDS), id="more_newlines"),
    ],
)
def test_every_record_is_found_and_can_be_read_alone(data):
    assert outline(data) == ALL


@pytest.mark.parametrize("levels", [(0, 4, 0), (0, 4, 4, 0), (4, 0, 0, 4)])
def test_members_of_one_size_with_different_heads_are_all_found(levels):
    """The next head that is like a member's may be that of one further on."""
    members = []
    for number, level in enumerate(levels):
        member = bytearray(warc_record(f"https://a.example/{number}", b"<p>text</p>"))
        member[8] = level  # which says how hard the compressor tried. Source: RFC 1952, section 2.3.1
        members.append(member)
    urls = [found.head.get("warc-target-uri") for found in found_in(b"".join(members))]
    assert urls == [f"https://a.example/{number}" for number in range(len(levels))]


def test_the_places_of_records_are_exact_and_complete():
    found = found_in(WHOLE)
    assert [WHOLE[f.offset : f.offset + f.length] for f in found] == MEMBERS
    assert sum(f.length for f in found) == len(WHOLE)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(WHOLE[:-1], [*ALL[:4], (4, "cut_off")], id="cut_by_one_byte"),
        pytest.param(WHOLE[: BEFORE + 2], [*ALL[:2], (None, "cut_off")], id="cut_after_the_magic"),
        pytest.param(PLAIN[:-30], [*ALL[:4], (4, "cut_off")], id="plain_and_cut"),
        pytest.param(WHOLE + HTML, [*ALL, (None, "damaged")], id="html_at_the_end"),
        pytest.param(WHOLE + b"\0" * 100, [*ALL, (None, "damaged")], id="zeros_at_the_end"),
        pytest.param(WHOLE + b"\x1f\x8b\x08", [*ALL, (None, "cut_off")], id="magic_at_the_end"),
        pytest.param(HTML + WHOLE, [(None, "damaged"), *ALL], id="html_at_the_start"),
        pytest.param(b"\xef\xbb\xbf" + PLAIN, [(None, "damaged"), *ALL], id="bom"),
        pytest.param(
            WHOLE[: BEFORE + 200] + b"\0" * 20 + WHOLE[BEFORE + 220 :],
            [*ALL[:2], (2, "damaged"), *ALL[3:]],
            id="hole",
        ),
        pytest.param(
            WHOLE[: BEFORE + 200] + WHOLE[BEFORE + len(MEMBERS[2]) + 100 :],
            [*ALL[:2], (2, "damaged"), ALL[4]],
            id="hole_over_two_records",
        ),
        pytest.param(
            MEMBERS[0] + gzip.compress(HTML) + MEMBERS[1],
            [ALL[0], (None, "damaged"), ALL[1]],
            id="member_without_a_record",
        ),
        pytest.param(gzip.compress(PLAIN), [(n, "not_separable") for n in range(5)], id="one_member_for_all"),
        pytest.param(
            MEMBERS[0] + gzip.compress(RECORDS[1] + RECORDS[2]) + MEMBERS[3],
            [ALL[0], (1, "not_separable"), (2, "not_separable"), ALL[3]],
            id="one_member_for_two",
        ),
        pytest.param(MEMBERS[0] + gzip.compress(RECORDS[1] + b"junk"), ALL[:2], id="junk_in_a_member"),
        pytest.param(
            MEMBERS[0] + gzip.compress(RECORDS[1] + b"junk\r\n" + RECORDS[2]) + MEMBERS[3],
            [ALL[0], (1, "not_separable"), (None, "damaged"), (2, "not_separable"), ALL[3]],
            id="junk_between_records_of_a_member",
        ),
        pytest.param(
            PLAIN.replace(b"WARC/1.0", b"XARC/1.0", 1), [(None, "damaged"), *ALL[1:]], id="no_magic"
        ),
        pytest.param(b"", [], id="empty"),
        pytest.param(HTML, [(None, "damaged")], id="html"),
        pytest.param(random.Random(0).randbytes(5000), [(None, "damaged")], id="random_bytes"),
        pytest.param(b"WARC/1.0\r\n" + b"A: b\r\n" * 400_000, [(None, "damaged")], id="endless_head"),
    ],
)
def test_damage_costs_what_it_hits_and_nothing_else(data, expected):
    assert outline(data) == expected


@pytest.mark.parametrize("length", [b"9", b"9999", b"999999999999", b"junk", b""])
def test_a_wrong_length_does_not_lose_the_next_record(length):
    head, separator, rest = RECORDS[1].partition(b"Content-Length: ")
    wrong = head + separator + length + rest[rest.index(b"\r\n") :]
    for data in (RECORDS[0] + wrong + RECORDS[2], MEMBERS[0] + gzip.compress(wrong) + MEMBERS[2]):
        assert outline(data) == [ALL[0], ALL[1], ALL[2]]


def test_what_looks_like_a_record_inside_a_page_is_none():
    page = warc_record(URLS[0], WHOLE + b"\r\n\r\n" + PLAIN)
    assert outline(page + MEMBERS[1]) == ALL[:2]
    assert outline(gzip.decompress(page) + RECORDS[1]) == ALL[:2]


def test_a_bomb_is_stopped_and_what_follows_is_found(monkeypatch):
    monkeypatch.setattr(module, "MAX_INFLATED_BYTES", 3_000_000)
    bomb = gzip.compress(RECORDS[0] + bytes(30_000_000))
    assert outline(bomb + MEMBERS[1]) == [(0, "record_too_large"), ALL[1]]


@pytest.mark.parametrize("form", [gzip.compress, bytes, zstandard.compress], ids=["gzip", "plain", "zstd"])
def test_memory_does_not_grow_with_the_record(form):
    record = RECORDS[0].replace(b"Content-Length: ", b"Content-Length: 9", 1)
    data = io.BytesIO(form(record + bytes(50_000_000)))
    tracemalloc.start()
    found = list(walk(data, len(data.getbuffer())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) >= 1
    assert peak < 30_000_000


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"\x1f\x8b\x08\x00", id="gzip_magic"),
        pytest.param(b"\x1f\x8b\x08\0\0\0\0\0\0\x03", id="gzip_heads"),
        pytest.param(b"\nWARC/1.0\r\nA: b", id="warc_heads"),
        pytest.param(b"\x28\xb5\x2f\xfd", id="zstd_magic"),
        pytest.param(b"\nhttp:", id="arc_lines"),
    ],
)
def test_time_does_not_grow_faster_than_the_damage(noise):
    seconds = []
    for size in (100_000, 400_000):
        data = HTML + noise * (size // len(noise)) + MEMBERS[0]
        started = time.thread_time()
        assert (0, None) in outline(data)
        seconds.append(time.thread_time() - started)
    assert seconds[1] < 20 * seconds[0] + 0.5


@pytest.mark.parametrize("size", [1 << 18, (1 << 20) - 1, 1 << 20, 5 << 20])
def test_large_records_are_like_small_ones(size):
    big = warc_record(URLS[0], random.Random(1).randbytes(size))
    assert outline(big + MEMBERS[1]) == ALL[:2]
    assert outline(gzip.decompress(big) + RECORDS[1]) == ALL[:2]


def test_the_shortcut_finds_what_the_long_way_finds(shared_data, monkeypatch):
    files = sorted((shared_data / "warc-odd").glob("*/*"))
    files += sorted((shared_data / "crawl").glob("crawl-data/*/segments/*/crawldiagnostics/*"))
    by_shortcut = [simplified(path.read_bytes()) for path in files]
    monkeypatch.setattr(module, "_gzip_record", lambda source: None)
    assert [simplified(path.read_bytes()) for path in files] == by_shortcut


def simplified(data: bytes) -> list[tuple]:
    return [
        (f.offset, f.length, f.head and f.head.raw, f.http and f.http.raw, f.failure) for f in found_in(data)
    ]


def test_every_generated_odd_file_gives_what_it_should(shared_data):
    """57 files with expected outcomes; a wish is an expectation of records that can be read."""
    folder, wrong = shared_data / "warc-odd", {}
    for case in json.loads((folder / "generated_expected.json").read_text()):
        found = [f for f in found_in((folder / case["file"]).read_bytes()) if f.head]
        failing = {name: value for name, value in case["expect"].items() if not holds(name, value, found)}
        wrong |= {case["file"]: failing} if failing else {}
    assert wrong == {}


def holds(name: str, value: Any, found: list[Found]) -> bool:
    kinds = Counter(f.head.kind for f in found)
    pages = [f for f in found if f.head.kind == "response"]
    urls = [f.head.get("warc-target-uri").strip("<>") for f in pages]
    checks: dict[str, Callable[[], bool]] = {
        "responses": lambda: len(pages) == value,
        "responses_min": lambda: len(pages) >= value,
        "responses_max": lambda: len(pages) <= value,
        "wish": lambda: len([f for f in pages if not f.failure]) >= value,
        "revisits": lambda: kinds["revisit"] == value,
        "resource": lambda: kinds["resource"] == value,
        "conversion": lambda: kinds["conversion"] == value,
        "urls_first": lambda: urls[: len(value)] == value,
        "url_last": lambda: urls[-1] == value,
    }
    return name not in checks or checks[name]()


def test_every_generated_payload_is_the_one_expected(shared_data):
    folder, wrong = shared_data / "warc-odd", []
    for case in json.loads((folder / "generated_expected.json").read_text()):
        data, expect = (folder / case["file"]).read_bytes(), case["expect"]
        if not {"payload_sha1", "min_bytes"} & set(expect):
            continue
        [page] = [f for f in found_in(data) if f.head.kind in PAGE_KINDS]
        payload = read_record(data[page.offset : page.offset + page.length]).payload
        right = sha1(payload) == expect.get("payload_sha1", sha1(payload))
        right = right and len(payload) >= expect.get("min_bytes", expect.get("payload_bytes", 0))
        wrong += [] if right else [case["file"]]
    assert wrong == []


def sha1(data: bytes) -> str:

    return hashlib.sha1(data).hexdigest()


def test_every_real_odd_file_gives_at_least_what_other_readers_find(shared_data):
    """52 files: the records of the reader that finds more, and in three files more than either finds."""
    folder, wrong = shared_data / "warc-odd", {}
    for case in json.loads((folder / "real_reference.json").read_text()):
        path = folder / case["file"]
        expected = KINDS.get(path.name) or max(
            case["warcio"], case["fastwarc"], key=lambda kinds: sum(kinds.values())
        )
        kinds = Counter(f.head.kind if f.head else None for f in found_in(path.read_bytes()))
        if "unknown" in expected:
            kinds = {"unknown": kinds.total()}
        wrong |= {path.name: (expected, kinds)} if expected != kinds else {}
    assert wrong == {}
