"""Damaged files at random: always records or failures, and what is not touched is always found.

Deterministic and bounded; `python tests/tasks/steps/warc/test_fuzzing.py SECONDS [SEED]` takes longer.
"""

import contextlib
import gzip
import io
import random
import sys
import time

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.steps.sample_crawl import warc_record
from tasks.steps.warc.heads import parse_http_head
from tasks.steps.warc.payload import Limits, RecordFailed, decode_payload
from tasks.steps.warc.records import read_record
from tasks.steps.warc.walk import Found, walk

FUZZ = settings(max_examples=150, derandomize=True, deadline=None, database=None)
LIMITS = Limits(max_bytes=300_000, max_ratio=50)
NOISE = random.Random(5)
URLS = [f"https://a.example/{n}" for n in range(7)]
MEMBERS = [warc_record(url, NOISE.randbytes(300) + b"<p>words of a page</p>" * 30) for url in URLS]
RECORDS = [gzip.decompress(member) for member in MEMBERS]
FORMS = {"gzip": MEMBERS, "plain": RECORDS, "zstd": [zstandard.compress(record) for record in RECORDS]}
SIGNS = [b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\0" * 30, b"\r\n\r\n"]
SIGNS += [b"WARC/1.0\r\n", b"Content-Length: 7\r\n", b"filedesc:// 1.2.3.4 20200101000000 a 9\n"]
PIECES = st.one_of(st.binary(max_size=40), st.sampled_from([*SIGNS, MEMBERS[3][:90], RECORDS[3][:90]]))
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 200), PIECES), min_size=1, max_size=4)
NAMES = ["gzip", "x-gzip", "deflate", "br", "zstd", "chunked", "identity", "junk"]
ENCODINGS = st.lists(st.sampled_from(NAMES), max_size=4)


def edited(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """Replaces some bytes at some relative places by others."""
    for where, removed, inserted in edits:
        place = int(where * len(data))
        data = data[:place] + inserted + data[place + removed :]
    return data


def read_all(data: bytes) -> tuple[list[Found], set[str]]:
    """All that is found, each byte once at most, and the URLs of the pages that can be read."""
    found, urls, end = list(walk(io.BytesIO(data), len(data))), set(), 0
    for one in found:
        shared = one.failure and one.failure[0] == "not_separable"
        assert one.length > 0
        assert one.offset >= end or shared or one.failure
        end = one.offset + one.length
        assert end <= len(data)
        if not one.failure:
            with contextlib.suppress(RecordFailed):
                urls.add(read_record(data[one.offset : end], LIMITS).head.get("warc-target-uri"))
    return found, urls


@pytest.mark.parametrize("form", FORMS)
@FUZZ
@given(victim=st.integers(0, 6), edits=EDITS)
def test_damage_inside_a_record_costs_no_other_one(form, victim, edits):
    parts = list(FORMS[form])
    parts[victim] = edited(parts[victim], edits)
    _, urls = read_all(b"".join(parts))
    others = set(URLS) - {URLS[victim]}
    # of plain records the next one may be taken for a part of the damaged one, where the length is damaged
    missed = others - urls
    assert not missed or (form == "plain" and missed <= {URLS[(victim + 1) % 7]})


@pytest.mark.parametrize("form", FORMS)
@FUZZ
@given(edits=EDITS, cut=st.floats(0, 1))
def test_damage_anywhere_is_survived(form, edits, cut):
    data = edited(b"".join(FORMS[form]), edits)
    read_all(data[: int(cut * len(data)) + 1])


@FUZZ
@given(edits=EDITS)
def test_damage_inside_a_shared_member_is_survived(edits):
    inside = edited(b"".join(RECORDS), edits)
    found, urls = read_all(MEMBERS[0] + gzip.compress(inside) + MEMBERS[6])
    assert {URLS[0], URLS[6]} <= urls
    assert found


@FUZZ
@given(data=st.binary(max_size=600))
def test_any_bytes_are_survived(data):
    read_all(data)
    read_all(b"\x1f\x8b\x08\x00" + data)
    read_all(b"WARC/1.0\r\n" + data)


@FUZZ
@given(encodings=ENCODINGS, declared=ENCODINGS, edits=EDITS, clean=st.booleans())
def test_any_body_is_decoded_or_fails_within_the_limits(encodings, declared, edits, clean):
    body = b"<p>words of a page</p>" * 200
    for name in encodings:
        body = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(name, bytes)(body)
    head = parse_http_head(f"HTTP/1.1 200 OK\r\nContent-Encoding: {','.join(declared)}\r\n\r\n".encode(), 0)
    with contextlib.suppress(RecordFailed):
        payload, problems = decode_payload(body if clean else edited(body, edits), head, LIMITS)
        assert len(payload) <= LIMITS.max_bytes
        assert all(problems)


@FUZZ
@given(edits=EDITS)
def test_any_http_head_is_parsed(edits):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=x\r\nX-Robots-Tag: a\r\n b\r\n\r\n<p>"
    record = RECORDS[0].replace(b"HTTP/1.1 200 OK\r\n", head, 1)
    read_all(edited(record, [(place / 3, *rest) for place, *rest in edits]) + RECORDS[1])


def main() -> None:
    """Runs the tests again and again with random examples."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    choose, until, rounds = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        form = choose.choice(list(FORMS))
        parts, victim = list(FORMS[form]), choose.randrange(7)
        pieces = [choose.randbytes(choose.randrange(30)), *SIGNS, MEMBERS[3][:90], RECORDS[3][:90]]
        edits = [
            (choose.random(), choose.choice([0, 1, 9, 200]), choose.choice(pieces))
            for _ in range(choose.randrange(1, 5))
        ]
        parts[victim] = edited(parts[victim], edits)
        started = time.thread_time()
        _, urls = read_all(b"".join(parts))
        missed = set(URLS) - urls - {URLS[victim], URLS[(victim + 1) % 7] if form == "plain" else ""}
        if missed or time.thread_time() - started > 2:
            print(form, victim, edits, missed, time.thread_time() - started)
        rounds += 1
    print(rounds, "rounds")


if __name__ == "__main__":
    main()
