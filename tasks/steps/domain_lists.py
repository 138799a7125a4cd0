"""Sets of millions of strings in a file that all processes of a machine share.

A set is the sorted array of its members' 64-bit hashes, mapped into memory, with a table of where the hashes
with the same first bits begin. Such a file is made once, under a name that says what it was made of.

A wrong "yes" has the chance members / 2**64: for DataTrove's 4.6 million domains and four look-ups a URL
that is one in 10**12 URLs. A wrong "no" cannot happen.
"""

import fcntl
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128

from pipeline_config.environment import home
from pipeline_config.errors import StoreError

FORMAT = 1  # raise it when the layout or the hash changes: older files are then left alone
DIGEST_BYTES = 16
HEADER = struct.Struct(f"<8sQQQ{DIGEST_BYTES}s")  # magic, members, bits of the table, longest member, digest
MAGIC = b"TMSET%03d" % FORMAT
MEMBERS_PER_PLACE = 16  # of the table, at least: the table takes 2 MB for 4.6 million members
READ_BYTES = 1 << 20


class CompactSet:
    """`found.has(text)` for a set made by `build_set`; the file is mapped, not read.

    `longest` is the number of bytes of the longest member: whoever looks up the parts of a long string need
    not try longer ones.

    Raises:
        ValueError: the file is not whole.
    """

    def __init__(self, path: Path):
        with open(path, "rb") as file:
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                raise ValueError("it is too short")
            magic, self.members, bits, self.longest, digest = HEADER.unpack(header)
            size = HEADER.size + 8 * ((1 << min(bits, 64)) + 1 + self.members)
            right = magic == MAGIC and os.fstat(file.fileno()).st_size == size
            if not right or _digest(header[: -len(digest)], _blocks(file)) != digest:
                raise ValueError("its content is not what was written")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        words = memoryview(mapped)[HEADER.size :].cast("Q")
        places = (1 << bits) + 1
        self.has = _look_up(words[:places], words[places:], 64 - bits)


def _look_up(starts: memoryview, hashes: memoryview, shift: int) -> Callable[[str], bool]:
    """Whether a string is a member; a function, since a look-up costs less than a method's attributes."""

    def has(text: str) -> bool:
        found = xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
        place = found >> shift
        end = starts[place + 1]
        at = bisect_left(hashes, found, starts[place], end)
        return at < end and hashes[at] == found

    return has


def compact_set(name: str, members: Callable[[], Iterable[Sequence[bytes]]]) -> CompactSet:
    """The set of this name below `home()`: mapped where it exists, made where it does not or is damaged.

    Args:
        name: says all that the members depend on, such as the digest of the list that they come from.
        members: gives the members, many at a time; called only where the set must be made.

    Raises:
        StoreError: the folder cannot be written.
    """
    path = home() / "cache" / "lists" / f"{name}-{FORMAT}.set"
    try:
        if (found := _open(path)) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(path):
                if (found := _open(path)) is None:  # else another process has made it meanwhile
                    build_set(path, members())
                    found = CompactSet(path)
    except OSError as error:
        raise StoreError(
            f"the list {path} cannot be written: {error.strerror}. Free some space, or set TOKENMILL_HOME to "
            "another folder"
        ) from None
    return found


def build_set(path: Path, members: Iterable[Sequence[bytes]]) -> None:
    """Writes a set; the file appears under its name when it is whole. Equal members give equal bytes."""
    parts, longest = [np.empty(0, dtype="<u8")], 0
    for some in members:
        parts.append(np.fromiter(map(xxh3_64_intdigest, some), dtype="<u8", count=len(some)))
        longest = max(longest, *map(len, some), 0)
    found = np.concatenate(parts)
    found.sort()
    found = found[np.diff(found, prepend=~found[:1]) != 0]  # each once
    bits = max(1, (len(found) // MEMBERS_PER_PLACE).bit_length() - 1)
    starts = np.searchsorted(found >> np.uint64(64 - bits), np.arange((1 << bits) + 1, dtype="<u8"))
    rest = starts.astype("<u8").tobytes() + found.tobytes()
    header = HEADER.pack(MAGIC, len(found), bits, longest, b"")[:-DIGEST_BYTES]
    header += _digest(header, [rest])
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(header + rest)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _open(path: Path) -> CompactSet | None:
    try:
        return CompactSet(path)
    except (FileNotFoundError, ValueError):  # a damaged one is replaced
        return None


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(READ_BYTES):  # not through the map: what is touched there counts as memory used
        yield block


def _digest(header: bytes, rest: Iterable[bytes]) -> bytes:
    digest = xxh3_128(header)
    for block in rest:
        digest.update(block)
    return digest.digest()


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Lets one process make a file while others wait; the lock goes with the process that holds it."""
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
