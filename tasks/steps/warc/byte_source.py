"""The bytes of a file from front to back, with a view of what comes next."""

import re
from collections.abc import Iterator
from typing import Any

from tasks.steps.warc.frames import BROKEN, frame_at

READ_BYTES = 1 << 18
PART_BYTES = 1 << 13  # small, because an inflater copies what it leaves of a part
OVERLAP_BYTES = 8192  # more than any pattern that is looked for matches
MAX_RESTARTS = 10


class ByteSource:
    """A file that is read forward; `position` is that of the byte that comes next.

    Args:
        size: of the file, if it can be known: long ways are then made without reading.
    """

    __slots__ = ("at", "buffer", "end", "file", "size")

    def __init__(self, file: Any, size: int | None = None):
        self.file, self.size = file, size
        self.buffer, self.at, self.end = b"", 0, 0  # `end`: where the buffer ends in the file

    @property
    def position(self) -> int:
        """Where in the file the next byte is."""
        return self.end - len(self.buffer) + self.at

    def fill(self, size: int) -> bytes:
        """What comes next: so many bytes, fewer at the end of the file; the position stays."""
        self.load(size)
        return self.buffer[self.at : self.at + size]

    def load(self, size: int) -> None:
        """Gets so many bytes into the buffer, from `at` on, or all that there are."""
        if len(self.buffer) - self.at < size:
            parts, have = [self.buffer[self.at :]], len(self.buffer) - self.at
            while have < size and (part := self.file.read(max(READ_BYTES, size - have))):
                parts.append(part)
                have += len(part)
                self.end += len(part)
            self.buffer, self.at = b"".join(parts), 0

    def take(self) -> bytes:
        """The next part of the file; b"" at its end."""
        part = self.fill(1) and self.buffer[self.at : self.at + PART_BYTES]
        self.at += len(part)
        return part

    def skip(self, size: int) -> int:
        """How many bytes were skipped: fewer than asked for at the end of the file."""
        if self.size is not None:
            size = min(size, self.size - self.position)
            self.seek(self.position + size)
            return size
        left = size
        while left and (part := self.fill(min(left, READ_BYTES))):
            self.at += len(part)
            left -= len(part)
        return size - left

    def skip_newlines(self) -> None:
        """Moves to the next byte that is neither CR nor LF."""
        while (view := self.fill(PART_BYTES)) and view[:1] in b"\r\n":
            self.at += len(view) - len(view.lstrip(b"\r\n"))

    def seek(self, position: int) -> None:
        """Moves to a position."""
        start = self.end - len(self.buffer)
        if start <= position <= self.end:
            self.at = position - start
        else:
            self.restart(position)

    def restart(self, position: int) -> None:
        """Moves to a position after someone else has moved the file."""
        self.file.seek(position)
        self.buffer, self.at, self.end = b"", 0, position

    def find(self, pattern: re.Pattern[bytes]) -> int | None:
        """Moves to the next match of a pattern, or to the end of the file; the position of the match."""
        while True:
            self.load(OVERLAP_BYTES + READ_BYTES)
            found = pattern.search(self.buffer, self.at)
            at_end = len(self.buffer) - self.at < OVERLAP_BYTES + READ_BYTES
            if found and (at_end or found.start() <= len(self.buffer) - OVERLAP_BYTES):
                self.at = found.start()
                return self.position
            if at_end:
                self.at = len(self.buffer)
                return None
            self.at = len(self.buffer) - OVERLAP_BYTES


class InflatedFile:
    """What the frame at an offset of a file inflates to, as a file; it ends where the frame is damaged."""

    def __init__(self, file: Any, offset: int):
        self.file, self.offset = file, offset
        self.restarts = 0
        self._start()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes."""
        while len(self.rest) < size and (piece := next(self.pieces, b"")):
            self.rest += piece
        part, self.rest = self.rest[:size], self.rest[size:]
        return part

    def seek(self, position: int) -> None:
        """Goes back by starting again, which is allowed a few times only."""
        self.restarts += 1
        self._start()
        if self.restarts > MAX_RESTARTS:
            self.pieces = iter(())
        while position and (part := self.read(min(position, READ_BYTES))):
            position -= len(part)

    def _start(self) -> None:
        self.rest, self.pieces = b"", self._inflate()

    def _inflate(self) -> Iterator[bytes]:
        self.file.seek(self.offset)
        source = ByteSource(self.file)
        kind = frame_at(source.fill(4))
        frame = kind()
        while not frame.eof and (part := source.take()):
            try:
                yield from frame.pieces(part)
            except BROKEN:
                return
