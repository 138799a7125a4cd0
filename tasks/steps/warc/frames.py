"""Compressed frames of a file, one after another: gzip members, zstd frames, LZ4 frames.

A frame is inflated in pieces of a bounded size, and says where in the file it ends, which neither FastWARC
nor warcio tell of a record.
"""

import io
import zlib
from collections.abc import Iterator
from typing import Protocol

import zstandard
from fastwarc.stream_io import Lz4Reader

from tasks.steps.warc.payload import GZIP, GZIP_MAGIC, STEP_BYTES, ZSTD_MAGIC, inflate_part

LZ4_MAGIC = b"\x04\x22\x4d\x18"
ZSTD_PART_BYTES = 128  # four bytes of zstd may stand for 128 KiB, and all comes at once
MAX_LZ4_FRAME_BYTES = 64 << 20
PEEK_BYTES = 8192
BROKEN = (EOFError, OSError, ValueError, zlib.error, zstandard.ZstdError)


class Frame(Protocol):
    """A frame that is being inflated; `unused` is what followed it in the last part."""

    eof: bool
    unused: bytes

    @staticmethod
    def peek(view: bytes) -> bytes:
        """The beginning of what the frame that `view` begins with inflates to."""
        ...

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """What one more part of the file decompresses to."""
        ...


class GzipFrame:
    """A gzip member."""

    def __init__(self) -> None:
        self.inflater = zlib.decompressobj(GZIP)
        self.eof, self.unused = False, b""

    @staticmethod
    def peek(view: bytes) -> bytes:
        """The beginning of what the member that `view` begins with inflates to."""
        return zlib.decompressobj(GZIP).decompress(view, PEEK_BYTES)

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """What one more part of the file decompresses to."""
        yield from inflate_part(self.inflater, part)
        self.eof, self.unused = self.inflater.eof, self.inflater.unused_data


class ZstdFrame:
    """A zstd frame."""

    def __init__(self) -> None:
        self.inflater = zstandard.ZstdDecompressor().decompressobj()
        self.eof, self.unused = False, b""

    @staticmethod
    def peek(view: bytes) -> bytes:
        """The beginning of what the frame that `view` begins with inflates to."""
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(view)) as reader:
            return reader.read(PEEK_BYTES)

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """What one more part of the file decompresses to."""
        for place in range(0, len(part), ZSTD_PART_BYTES):
            piece = self.inflater.decompress(part[place : place + ZSTD_PART_BYTES])
            if piece:
                yield piece
            if self.inflater.eof:
                self.eof = True
                self.unused = self.inflater.unused_data + part[place + ZSTD_PART_BYTES :]
                return


class Lz4Frame:
    """An LZ4 frame, whose blocks say their size, so that its end is known without inflating it.

    Source: LZ4 frame format 1.6.4.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.next = 0  # where the next block begins; 0 while the header is incomplete
        self.eof, self.unused = False, b""

    @staticmethod
    def peek(view: bytes) -> bytes:
        """The beginning of what the frame that `view` begins with inflates to."""
        return Lz4Reader(io.BytesIO(view)).read(PEEK_BYTES)

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Nothing before the frame is whole, and then all of it."""
        self.data += part
        end = self._end()
        if end is None and len(self.data) > MAX_LZ4_FRAME_BYTES:
            raise ValueError(f"LZ4 frame of more than {MAX_LZ4_FRAME_BYTES} bytes")
        if end is None:
            return
        self.eof, self.unused = True, bytes(self.data[end:])
        reader = Lz4Reader(io.BytesIO(bytes(self.data[:end])))
        while piece := reader.read(STEP_BYTES):
            yield piece

    def _end(self) -> int | None:
        if not self.next:
            if len(self.data) < 5:
                return None
            flags = self.data[4]
            self.next = 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        while len(self.data) >= self.next + 4:
            size = int.from_bytes(self.data[self.next : self.next + 4], "little")
            self.next += 4
            if not size:
                end = self.next + (4 if self.data[4] & 4 else 0)
                self.next -= 4
                return end if len(self.data) >= end else None
            self.next += (size & 0x7FFFFFFF) + (4 if self.data[4] & 16 else 0)
        return None


FRAMES: dict[bytes, type[Frame]] = {GZIP_MAGIC: GzipFrame, ZSTD_MAGIC: ZstdFrame, LZ4_MAGIC: Lz4Frame}


def frame_at(start: bytes) -> type[Frame] | None:
    """The kind of frame that begins with some bytes, if any does."""
    return FRAMES.get(start[:2]) or FRAMES.get(start[:4])
