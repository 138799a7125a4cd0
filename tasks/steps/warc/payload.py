"""The payload of an HTTP response: transfer and content encodings undone, within limits.

Servers and crawlers declare encodings that are not there, cut bodies short, and break them. What can be
decoded is kept, what is not encoded is taken as it is, and each such case is named.
"""

import contextlib
import io
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import brotli
import zstandard

from tasks.steps.warc.heads import HttpHead

STEP_BYTES, SLICE_BYTES = 1 << 20, 1 << 16
FREE_BYTES = 1 << 20  # decoded bytes below which a ratio says nothing
# Source: RFC 9659, section 3: the largest window of the content encoding zstd
ZSTD_WINDOW_BYTES = 8 << 20
GZIP, ZLIB, RAW_DEFLATE = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
GZIP_START = GZIP_MAGIC + b"\x08"  # and deflate, the only method that there is
CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]{0,1000})?\r?\n")
BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
PLAIN_PROBE_BYTES = 512
MAX_ENCODINGS, MAX_GZIP_STREAMS = 8, 10_000
DECODING_ERRORS = (EOFError, zlib.error, brotli.error, zstandard.ZstdError)


class Limits(NamedTuple):
    """How much a payload may become."""

    max_bytes: int = 20_000_000
    max_ratio: float = 1000.0


class RecordFailed(ValueError):
    """A record that cannot be read: reason, value."""

    @property
    def reason(self) -> str:
        """Why, as the ledger names it."""
        return self.args[0]

    @property
    def value(self) -> str:
        """What was found."""
        return self.args[1]


def decode_payload(body: bytes, head: HttpHead | None, limits: Limits) -> tuple[bytes, list[str]]:
    """The body without its encodings, and what was wrong with them.

    Raises:
        RecordFailed: it becomes larger than the limits allow.
    """
    problems: list[str] = []
    if head is not None:
        transfer = _encodings(head, "transfer-encoding")
        if "chunked" in transfer:
            body = _without_chunks(body, problems)
        encodings = _encodings(head, "content-encoding") + [name for name in transfer if name != "chunked"]
        for name in reversed(encodings[-MAX_ENCODINGS:]):
            body = _decoded(body, name, limits, problems)
    if len(body) > limits.max_bytes:
        raise RecordFailed("payload_too_large", f"{len(body)} bytes")
    return body, problems


def _encodings(head: HttpHead, field: str) -> list[str]:
    names = ",".join(head.all(field)).lower().split(",")
    return [name.strip().removeprefix("x-") for name in names if name.strip() not in ("", "identity")]


def _without_chunks(body: bytes, problems: list[str]) -> bytes:
    parts, place = [], 0
    while place < len(body):
        found = CHUNK_SIZE.match(body, place)
        if found is None:
            if not parts:
                problems.append("not chunked")
                return body
            problems.append(f"broken chunk at {place}")
            break
        size = int(found.group(1), 16)
        if size == 0:
            break
        parts.append(body[found.end() : found.end() + size])
        place = found.end() + size
        if place > len(body):
            problems.append("cut chunk")
        place += 2 if body[place : place + 2] == b"\r\n" else body[place : place + 1] == b"\n"
    return b"".join(parts)


def _decoded(body: bytes, name: str, limits: Limits, problems: list[str]) -> bytes:
    decode = DECODERS.get(name)
    if decode and name != "gzip" and body.startswith(GZIP_START):
        problems.append(f"gzip declared as {name}")
        decode = _gunzip
    if decode is None:
        problems.append(f"unknown encoding {name[:40]}")
        return body
    chunks = decode(body) if body else None
    if chunks is None:
        if body:
            problems.append(f"not {name}")
        return body
    allowed = min(limits.max_bytes, max(FREE_BYTES, int(limits.max_ratio * len(body))))
    decoded, problem = _collect(chunks, len(body), allowed, limits)
    if problem and not decoded:
        problems.append(f"not {name}")
        return body
    if problem:
        problems.append(f"{name}: {problem}"[:200])
    return decoded


def _collect(chunks: Iterator[bytes], encoded: int, allowed: int, limits: Limits) -> tuple[bytes, str | None]:
    """All that can be decoded, and what ended it early."""
    parts, size = [], 0
    try:
        for chunk in chunks:
            size += len(chunk)
            if size > allowed:
                if allowed < limits.max_bytes:
                    raise RecordFailed("decompression_bomb", f"more than {allowed} bytes of {encoded}")
                raise RecordFailed("payload_too_large", f"more than {allowed} bytes")
            parts.append(chunk)
    except DECODING_ERRORS as error:
        return b"".join(parts), str(error) or type(error).__name__
    return b"".join(parts), None


def inflate(data: bytes, window: int, streams: int = 1) -> Iterator[bytes]:
    """The decompressed bytes of one deflate stream or more, a piece at a time; what follows is left alone.

    Raises:
        EOFError: the last stream is cut off, or there are too many.
        zlib.error: one is damaged.
    """
    place = 0
    for _ in range(streams):
        inflater = zlib.decompressobj(window)
        while not inflater.eof:
            part = data[place : place + SLICE_BYTES]
            place += len(part)
            yield from inflate_part(inflater, part)
            if not part and not inflater.eof:
                raise EOFError("cut off")
        place -= len(inflater.unused_data)
        if not data.startswith(GZIP_MAGIC, place):
            return
    if streams > 1:
        raise EOFError(f"more than {streams} streams")


def inflate_part(inflater: Any, part: bytes) -> Iterator[bytes]:
    """What one more part of a stream decompresses to, in pieces of a bounded size.

    Raises:
        zlib.error: it is damaged; what comes before the damage has been given.
    """
    spare, given = inflater.copy(), 0
    try:
        for piece in _pieces(inflater, part):
            given += len(piece)
            yield piece
    except zlib.error:
        yield from _before_damage(spare, part, given)
        raise


def _pieces(inflater: Any, part: bytes) -> Iterator[bytes]:
    full = True
    while full:
        piece = inflater.decompress(part, STEP_BYTES)
        part = inflater.unconsumed_tail
        full = not inflater.eof and (bool(part) or len(piece) == STEP_BYTES)
        if piece:
            yield piece


def _before_damage(inflater: Any, part: bytes, skipped: int) -> Iterator[bytes]:
    """What a part decompresses to, byte by byte, as zlib keeps nothing of the call that meets damage."""
    with contextlib.suppress(zlib.error):
        for place in range(len(part)):
            for piece in _pieces(inflater, part[place : place + 1]):
                if skipped < len(piece):
                    yield piece[skipped:]
                skipped = max(0, skipped - len(piece))


def _gunzip(body: bytes) -> Iterator[bytes] | None:
    return inflate(body, GZIP, MAX_GZIP_STREAMS) if body.startswith(GZIP_MAGIC) else None


def _inflate_either(body: bytes) -> Iterator[bytes] | None:
    return None if _is_plain(body) else _deflate_pieces(body)


def _deflate_pieces(body: bytes) -> Iterator[bytes]:
    """Deflate means zlib; some servers send it bare."""
    empty = True
    try:
        for piece in inflate(body, ZLIB):
            empty = False
            yield piece
    except zlib.error:
        if not empty:
            raise
        yield from inflate(body, RAW_DEFLATE)


def _unbrotli(body: bytes) -> Iterator[bytes] | None:
    return None if _is_plain(body) else _brotli_pieces(body)


def _brotli_pieces(body: bytes) -> Iterator[bytes]:
    decoder = brotli.Decompressor()
    piece = decoder.process(body, output_buffer_limit=STEP_BYTES)
    while True:
        yield piece
        if decoder.is_finished():
            return
        if decoder.can_accept_more_data():
            raise EOFError("cut off")
        piece = decoder.process(b"", output_buffer_limit=STEP_BYTES)


def _unzstd(body: bytes) -> Iterator[bytes] | None:
    return _zstd_pieces(body) if body.startswith(ZSTD_MAGIC) else None


def _zstd_pieces(body: bytes) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    with decoder.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        while piece := reader.read(STEP_BYTES):
            yield piece


def _is_plain(body: bytes) -> bool:
    """Whether a body looks like text, which compressed bytes never do for long."""
    return BINARY.search(body, 0, PLAIN_PROBE_BYTES) is None


DECODERS: dict[str, Callable[[bytes], Iterator[bytes] | None]] = {
    "gzip": _gunzip,
    "deflate": _inflate_either,
    "br": _unbrotli,
    "zstd": _unzstd,
}
