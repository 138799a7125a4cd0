"""Walks through a WARC or ARC file, record by record: where each lies, what its head says, or why it fails.

Damage costs the records that it hits. After it the walk goes on at the next place where a record begins;
all that lies between is one failed record. A record that is compressed by itself (gzip, zstd, LZ4) or not at
all has a place in the file that can be read alone; records that share a frame have none and fail.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from deflate import DeflateError, crc32, gzip_decompress

from tasks.steps.warc.byte_source import ByteSource, InflatedFile
from tasks.steps.warc.frames import BROKEN, frame_at
from tasks.steps.warc.heads import (
    ARC_START,
    MAX_HEAD_BYTES,
    PAGE_KINDS,
    WARC_LINE,
    WARC_START,
    ArcHead,
    Head,
    HttpHead,
    parse_head,
    parse_http_head,
    starts_record,
)
from tasks.steps.warc.payload import BINARY, GZIP_START
from tasks.steps.warc.records import TAIL_BYTES, block_end

DAMAGED, CUT_OFF, NOT_SEPARABLE, TOO_LARGE = "damaged", "cut_off", "not_separable", "record_too_large"
NO_RECORD = DAMAGED, "no record begins here"
KEPT_BYTES = 2 * MAX_HEAD_BYTES  # of an inflated record, for its two heads
MAX_INFLATED_BYTES = 4 << 30
SHORTCUT_BYTES = 1 << 20  # of a member, and of what it inflates to
NEAR_BYTES = 1 << 15  # in which a head like this member's is looked for first: a longer one is found faster
GZIP_HEAD_BYTES, MIN_MEMBER_BYTES = 10, 18  # Source: RFC 1952, section 2.2: head; digest and size of 8
START_BYTES = 8192  # more than the first line of a record takes
# Source: RFC 1952, section 2.3 (flags, time, extra flags, system); RFC 8878, section 3.1.1.1.1 (a reserved
# bit); LZ4 frame format 1.6.4 (version)
GZIP_HEAD = rb"\x1f\x8b\x08[\x00-\x1f][\x00-\xff]{4}[\x00\x02\x04][\x00-\x0d\xff]"
ZSTD_HEAD = rb"\x28\xb5\x2f\xfd[" + re.escape(bytes(byte for byte in range(256) if not byte & 8)) + rb"]"
PACKED_START = re.compile(GZIP_HEAD + b"|" + ZSTD_HEAD + rb"|\x04\x22\x4d\x18[\x40-\x7f]")
PLAIN_START = b"(?<=\n)(?:" + WARC_START.pattern + b"|" + ARC_START.pattern + b")"
ANY_START = re.compile(PACKED_START.pattern + b"|" + PLAIN_START)
MAX_PREFIX_BYTES = 8  # at the beginning of a file a record may follow a mark, rather than a line's end
NEXT_WARC, NEXT_ARC = (
    re.compile(PACKED_START.pattern + b"|\n" + start.pattern) for start in (WARC_START, ARC_START)
)
SHARED = "shares a compressed frame with other records: compress each record, as `warcio recompress` does"


Failure = tuple[str, str]  # reason, value


class Found(NamedTuple):
    """A record, or bytes that are none: where it is, its heads as far as known, why it fails if it does."""

    offset: int
    length: int
    head: Head | None = None
    http: HttpHead | None = None
    failure: Failure | None = None


class _Inflated:
    """The beginning of what a frame inflates to, and how much it is."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = self.kept = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.kept < KEPT_BYTES:
            self.parts.append(piece)
            self.kept += len(piece)

    @property
    def data(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


def walk(file: Any, size: int | None = None) -> Iterator[Found]:
    """The records of a file in order, of all kinds, and what is damaged.

    Args:
        file: opened for reading bytes, and able to seek.
        size: of the file, where it is known.
    """
    source, packed, plain = ByteSource(file, size), False, False
    while start := source.fill(4):
        while found := _gzip_record(source):
            packed = True
            yield found
            start = b""
        if not start:
            continue
        if frame_at(start):
            for found in _frame(source, PACKED_START if packed and not plain else ANY_START):
                packed = packed or not found.failure
                yield found
        elif start[:1] in b"\r\n":
            source.skip_newlines()
        elif _is_head(source.fill(START_BYTES)):
            plain = True
            yield _plain(source)
        else:
            pattern = PACKED_START if packed and not plain else ANY_START
            yield _lost(source, source.position, source.position + 1, NO_RECORD, pattern)


def _gzip_record(source: ByteSource) -> Found | None:
    """The record of a sound gzip member of moderate size; None, and nothing done, in all other cases.

    `_frame` finds the same. Nearly all records of a crawl are met here, at twice the speed: libdeflate takes
    whole members, of which the next one's beginning is a good guess at the end. It checks length and digest.
    """
    if not source.buffer.startswith(GZIP_START, source.at):
        return None
    behind, same = source.at + MIN_MEMBER_BYTES, source.buffer[source.at : source.at + GZIP_HEAD_BYTES]
    end = source.buffer.find(same, behind, behind + NEAR_BYTES)
    if end < 0:
        end = source.buffer.find(GZIP_START, behind)
    if end < 0:
        source.load(SHORTCUT_BYTES)
        end = source.buffer.find(GZIP_START, source.at + MIN_MEMBER_BYTES)
    member = source.buffer[source.at : end if end >= 0 else None]
    size = int.from_bytes(member[-4:], "little")
    if size > SHORTCUT_BYTES or len(member) < MIN_MEMBER_BYTES:
        return None
    try:
        data = gzip_decompress(member)
    except (DeflateError, ValueError):
        return None
    head = parse_head(data)
    if head is None or len(data) != size or not _is_single(head, data, size):
        return None
    if crc32(data) != int.from_bytes(member[-8:-4], "little"):
        return None  # a member of the same size, with others behind it: their heads differ from this one's
    start = source.position
    source.at += len(member)
    return Found(start, len(member), head, _http(head, data))


def _frame(source: ByteSource, pattern: re.Pattern[bytes]) -> Iterator[Found]:
    start, inflated = source.position, _Inflated()
    failure = _inflate(source, inflated)
    end, data = source.position, inflated.data
    head = parse_head(data)
    if failure and failure[0] == TOO_LARGE:
        yield _lost(source, start, end, failure, pattern, head, _http(head, data))
    elif failure:
        yield from _broken_frame(source, start, failure, inflated, pattern)
    elif head and _is_single(head, data, inflated.size):
        yield Found(start, end - start, head, _http(head, data))
    elif head or starts_record(data[:START_BYTES].lstrip(b"\r\n")):
        yield from _shared_frame(source, start, end)
    elif data.strip(b"\r\n"):
        yield Found(start, end - start, None, None, (DAMAGED, f"a frame without a record: {data[:40]!r}"))


def _broken_frame(
    source: ByteSource, start: int, failure: Failure, inflated: _Inflated, pattern: re.Pattern[bytes]
) -> Iterator[Found]:
    """The failed record of a frame that breaks off, after those that lie before it in the same frame."""
    data = inflated.data
    head = parse_head(data) or (Head(data) if WARC_LINE.match(data) else None)
    http, end = _http(head, data), source.position
    if head and head.length is not None and head.size + head.length + TAIL_BYTES < inflated.size:
        for found in _walk_inside(source.file, start):
            head, http = found.head, found.http
            if found.failure:
                break
            yield found._replace(offset=start, length=end - start, failure=(NOT_SEPARABLE, SHARED))
        source.restart(end)
    yield _lost(source, start, start + 1, failure, pattern, head, http)


def _inflate(source: ByteSource, inflated: _Inflated) -> Failure | None:
    """Inflates the frame at the source's position, and leaves the source where it ends; or why it fails."""
    frame = frame_at(source.fill(4))()
    while not frame.eof:
        part = source.take()
        if not part:
            return CUT_OFF, "the file ends inside this compressed record"
        try:
            for piece in frame.pieces(part):
                inflated.add(piece)
        except BROKEN as error:
            return DAMAGED, f"compressed data: {error}"
        if inflated.size > MAX_INFLATED_BYTES:
            return TOO_LARGE, f"inflates to more than {MAX_INFLATED_BYTES} bytes"
    source.at -= len(frame.unused)
    return None


def _is_single(head: Head, data: bytes, size: int) -> bool:
    end = block_end(head, size)
    return end is not None and not data[end:].strip(b"\r\n")


def _shared_frame(source: ByteSource, start: int, end: int) -> Iterator[Found]:
    """The records of a frame whose size is not that of its first record."""
    inside = _walk_inside(source.file, start)
    first, second, third = (next(inside, None) for _ in range(3))
    if second is None or (third is None and second.head is None and first.failure is None):
        # The frame is whole: a block that seems cut off has a wrong length, which `read_record` sees to
        yield first._replace(offset=start, length=end - start, failure=None)
    else:
        for found in chain(filter(None, (first, second, third)), inside):
            failure = found.failure or (NOT_SEPARABLE, SHARED)
            yield found._replace(offset=start, length=end - start, failure=failure)
    source.restart(end)


def _walk_inside(file: Any, start: int) -> Iterator[Found]:
    """The records of a frame, with places in what it inflates to."""
    source = ByteSource(InflatedFile(file, start))
    source.skip_newlines()
    while source.fill(1):
        if _is_head(source.fill(START_BYTES)):
            yield _plain(source)
        else:
            yield _lost(source, source.position, source.position + 1, NO_RECORD, ANY_START)
        source.skip_newlines()


def _plain(source: ByteSource) -> Found:
    """The record at the source's position, which is not compressed, or no longer."""
    start = source.position
    head = _plain_head(source)
    if head is None:  # so that, but for its end, no other head can end in the same view
        search = start + max(1, len(source.fill(MAX_HEAD_BYTES)) - START_BYTES)
        return _lost(source, start, search, (DAMAGED, "a record's head that does not end"), ANY_START)
    http = _http(head, source.fill(head.size + min(head.length or MAX_HEAD_BYTES, MAX_HEAD_BYTES)))
    body, failure = start + head.size, None
    whole = head.length is not None and source.skip(head.size + head.length) == head.size + head.length
    if not (whole and _ends_here(source)):
        source.seek(body - 1)
        if _find_record(source, NEXT_ARC if isinstance(head, ArcHead) else NEXT_WARC):
            pass
        elif whole:
            source.seek(body + head.length)
        elif head.length is not None:
            failure = CUT_OFF, f"{head.length} bytes declared, {source.position - body} found"
    return Found(start, source.position - start, head, http, failure)


def _plain_head(source: ByteSource) -> Head | None:
    size = START_BYTES
    head = parse_head(source.fill(size))
    while head is None and size < MAX_HEAD_BYTES:
        size *= 4
        head = parse_head(source.fill(size))
    return head


def _ends_here(source: ByteSource) -> bool:
    """Whether a record ends at the source's position, which then moves behind its last newlines."""
    tail = source.fill(START_BYTES)
    newlines = len(tail) - len(tail[:4].lstrip(b"\r\n") + tail[4:])
    if tail[:4] != b"\r\n\r\n" and tail[newlines:] and not starts_record(tail, newlines):
        return False
    source.skip(newlines)
    return True


def _http(head: Head | None, data: bytes) -> HttpHead | None:
    return parse_http_head(data, head.size) if head and head.kind in PAGE_KINDS else None


def _lost(
    source: ByteSource,
    start: int,
    search: int,
    failure: Failure,
    pattern: re.Pattern[bytes],
    head: Head | None = None,
    http: HttpHead | None = None,
) -> Found:
    """The failed record from `start` to the next place from `search` on where one begins.

    Args:
        pattern: what may begin a record. In a file whose records are compressed only a frame can: what looks
            like a record in between is a part of a page.
    """
    source.seek(search)
    early = WARC_START.search(source.fill(START_BYTES)) if start == 0 else None
    if early and early.start() < MAX_PREFIX_BYTES:
        source.skip(early.start())
    else:
        _find_record(source, pattern)
    return Found(start, source.position - start, head, http, failure)


def _find_record(source: ByteSource, pattern: re.Pattern[bytes]) -> bool:
    """Moves to the next record, or to the end of the file; whether there is one."""
    while source.find(pattern) is not None:
        if source.fill(1) == b"\n":
            source.skip(1)
        if _begins_record(source.fill(START_BYTES)):
            return True
        source.skip(1)
    return False


def _is_head(view: bytes) -> bool:
    """Whether a record's head begins here, and goes on as text."""
    if not starts_record(view):
        return False
    head = parse_head(view)
    return BINARY.search(head.raw if head else view) is None


def _begins_record(view: bytes) -> bool:
    """Whether what looks like the beginning of a record is one: a frame with a record, or a head of text."""
    kind = frame_at(view)
    if kind is None:
        return _is_head(view)
    try:
        return starts_record(kind.peek(view[:START_BYTES]))
    except BROKEN:
        return False
