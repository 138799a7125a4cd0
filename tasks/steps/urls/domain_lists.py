"""Sets of millions of strings in a file that all processes of a machine share.

A set is the sorted array of its members' 64-bit hashes, mapped into memory, with a table of where the hashes
with the same first bits begin. Each member belongs to a list, which has a number; the numbers take room only
where there are several. Such a file is made once, under a name that says what it was made of.

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
HEADER = struct.Struct(f"<8sQQQQ{DIGEST_BYTES}s")
"""Magic, members, numbers of lists (as many, or none), bits of the table, longest member, digest of all."""
MAGIC = b"TMSET%03d" % FORMAT
MEMBERS_PER_PLACE = 16  # of the table, at least: the table takes 2 MB for 4.6 million members
READ_BYTES = 1 << 20

Members = tuple[int, Sequence[bytes]]  # the number of a list, and some of its members


class CompactSet:
    """A set made by `build_set`; the file is mapped, not read.

    `number(text)` is the number of the list that has a string, or None; `longest` the number of bytes of the
    longest member: whoever looks up the parts of a long string need not try longer ones.

    Raises:
        ValueError: the file is not whole.
    """

    def __init__(self, path: Path):
        with open(path, "rb") as file:
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                raise ValueError("it is too short")
            magic, self.members, numbered, bits, self.longest, digest = HEADER.unpack(header)
            places = (1 << min(bits, 64)) + 1
            ends = HEADER.size + 8 * places, HEADER.size + 8 * (places + self.members)
            right = magic == MAGIC and os.fstat(file.fileno()).st_size == ends[1] + 2 * numbered
            if not right or _digest(header[:-DIGEST_BYTES], _blocks(file)) != digest:
                raise ValueError("its content is not what was written")
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        starts, hashes = mapped[HEADER.size : ends[0]].cast("Q"), mapped[ends[0] : ends[1]].cast("Q")
        self.number = _look_up(starts, hashes, mapped[ends[1] :].cast("H"), 64 - bits)


def _look_up(
    starts: memoryview, hashes: memoryview, numbers: memoryview, shift: int
) -> Callable[[str], int | None]:
    """The number of the list that has a string; a function, for a look-up costs less than its attributes."""
    numbered = len(numbers) > 0

    def number(text: str) -> int | None:
        found = xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
        place = found >> shift
        end = starts[place + 1]
        at = bisect_left(hashes, found, starts[place], end)
        if at == end or hashes[at] != found:
            return None
        return numbers[at] if numbered else 0

    return number


def compact_set(name: str, members: Callable[[], Iterable[Members]]) -> CompactSet:
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


def build_set(path: Path, members: Iterable[Members]) -> None:
    """Writes a set; the file appears under its name when it is whole. Equal members give equal bytes.

    Of several lists with the same member the first one has it.
    """
    parts, labels, longest = [np.empty(0, "<u8")], [np.empty(0, "<u2")], 0
    for number, some in members:
        parts.append(np.fromiter(map(xxh3_64_intdigest, some), "<u8", count=len(some)))
        labels.append(np.full(len(some), number, "<u2"))
        longest = max(longest, *map(len, some), 0)
    hashes, numbers = _sorted(np.concatenate(parts), np.concatenate(labels))
    bits = max(1, (len(hashes) // MEMBERS_PER_PLACE).bit_length() - 1)
    starts = np.searchsorted(hashes >> np.uint64(64 - bits), np.arange((1 << bits) + 1, dtype="<u8"))
    rest = [starts.astype("<u8").tobytes(), hashes.tobytes(), numbers.tobytes()]
    header = HEADER.pack(MAGIC, len(hashes), len(numbers), bits, longest, b"")[:-DIGEST_BYTES]
    _write(path, [header, _digest(header, rest), *rest])


def _sorted(hashes: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each hash once, in order, with the number of its first list; no numbers where all are 0."""
    if numbers.any():
        order = np.argsort(hashes, kind="stable")
        hashes, numbers = hashes[order], numbers[order]
    else:
        numbers = numbers[:0]
        hashes.sort()
    first = np.diff(hashes, prepend=~hashes[:1]) != 0
    return hashes[first], numbers[first] if len(numbers) else numbers


def _write(path: Path, parts: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.writelines(parts)
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
