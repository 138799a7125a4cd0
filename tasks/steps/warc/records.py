"""One record of a WARC or ARC file, from the bytes that a pointer names."""

import base64
import contextlib
import hashlib
import io
import zlib
from typing import NamedTuple

from deflate import DeflateError, gzip_decompress
from fastwarc.stream_io import Lz4Reader, ZstdReader

from tasks.steps.warc.heads import MAX_HEAD_BYTES, PAGE_KINDS, Head, HttpHead, parse_head, parse_http_head
from tasks.steps.warc.payload import (
    GZIP,
    GZIP_MAGIC,
    GZIP_START,
    STEP_BYTES,
    ZSTD_MAGIC,
    Limits,
    RecordFailed,
    decode_payload,
    inflate,
)

LZ4_MAGIC = b"\x04\x22\x4d\x18"
FRAME_READERS = {ZSTD_MAGIC: ZstdReader, LZ4_MAGIC: Lz4Reader}
UNREADABLE = "unreadable_record"
DEFAULT_LIMITS = Limits()
TAIL_BYTES = 4  # CR LF CR LF ends a record
HASHES = ("md5", "sha1", "sha256", "sha512")


class Record(NamedTuple):
    """A record: its head, its HTTP head if it has one, and its body as stored and decoded.

    `problems` say what was wrong with it.
    """

    head: Head
    http: HttpHead | None
    body: bytes
    payload: bytes
    problems: tuple[str, ...] = ()

    @property
    def content_type(self) -> str:
        """What the page is declared to be; "" where nothing is said."""
        return declared_type(self.head, self.http)

    @property
    def truncated(self) -> str:
        """Why the crawler stored only a part of the page; "" where it stored all."""
        return truncation(self.head)


def declared_type(head: Head, http: HttpHead | None) -> str:
    """The Content-Type of a page; "" where nothing is said."""
    if http is not None:
        return http.get("content-type")
    declared = head.get("content-type")
    return "" if declared.lower().startswith("application/http") else declared


def truncation(head: Head) -> str:
    """Why a record holds only a part of its page; "" where it holds all."""
    return head.get("warc-truncated") or ("segmented" if head.get("warc-segment-number") else "")


def read_record(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Record:
    """The one record in `data`, compressed or not, with its payload decoded.

    Raises:
        RecordFailed: there is no whole record, or its payload exceeds the limits.
    """
    data = _uncompressed(data, limits.max_bytes + MAX_HEAD_BYTES)
    if data[:1] in (b"\r", b"\n"):
        data = data.lstrip(b"\r\n")
    head = parse_head(data)
    if head is None:
        raise RecordFailed(UNREADABLE, f"no record begins with {data[:40]!r}")
    problems: list[str] = []
    end = _block_end(data, head, problems)
    if head.kind == "revisit":
        return Record(head, parse_http_head(data[:end], head.size), b"", b"")
    http = parse_http_head(data, head.size) if head.kind in PAGE_KINDS else None
    body = bytes(memoryview(data)[head.size + (http.size if http else 0) : end])
    payload, more = decode_payload(body, http, limits)
    return Record(head, http, body, payload, (*problems, *more))


def block_end(head: Head, available: int) -> int | None:
    """Where a record's block ends if its declared length fits what there is of it, else None."""
    if head.length is None:
        return None
    end = head.size + head.length
    return end if end <= available <= end + TAIL_BYTES else None


def _block_end(data: bytes, head: Head, problems: list[str]) -> int:
    """Where the block ends by its declared length, or if that does not fit, where the record does."""
    end = block_end(head, len(data))
    if end is not None and not data[end:].strip(b"\r\n"):
        return end
    if head.length is not None and data.startswith(b"\r\n\r\n", head.size + head.length):
        problems.append(f"{len(data) - head.size - head.length} bytes after the record")
        return head.size + head.length
    end = len(data)
    for tail in (b"\r\n\r\n", b"\n\n", b"\n"):
        if data.endswith(tail):
            end = max(head.size, len(data) - len(tail))
            break
    found = end - head.size
    declared = "no length" if head.length is None else f"length {head.length}"
    if not _agrees(data[head.size : end], head.get("warc-block-digest")):
        raise RecordFailed(UNREADABLE, f"{declared} declared, {found} found, and another digest")
    problems.append(f"{declared} declared, {found} found")
    return end


def _agrees(block: bytes, digest: str) -> bool:
    """Whether a block is what its digest says, or there is none to tell."""
    name, _, expected = digest.partition(":")
    name = name.lower().replace("-", "")
    if name not in HASHES:
        return True
    found = hashlib.new(name, block).digest()
    return expected.upper() == base64.b32encode(found).decode() or expected.lower() == found.hex()


def _uncompressed(data: bytes, most: int) -> bytes:
    if data.startswith(GZIP_START) and int.from_bytes(data[-4:], "little") <= most:
        with contextlib.suppress(DeflateError, ValueError):
            return gzip_decompress(data)  # twice as fast as zlib, where all is well
    if data.startswith(GZIP_MAGIC):
        pieces = inflate(data, GZIP)
    elif data[:4] in FRAME_READERS:
        reader = FRAME_READERS[data[:4]](io.BytesIO(data))
        pieces = iter(lambda: reader.read(STEP_BYTES), b"")
    else:
        return data
    parts, size = [], 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > most:
                raise RecordFailed("payload_too_large", f"more than {most} bytes in the record")
            parts.append(piece)
    except (EOFError, OSError, zlib.error) as error:
        raise RecordFailed(UNREADABLE, f"compressed data: {error}") from None
    return b"".join(parts)
