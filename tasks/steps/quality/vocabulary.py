"""Words as numbers, and what rules ask of them, for all words of a text at once."""

import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from datatrove.utils.text import PUNCTUATION_SET

BASE = 0x9E3779B97F4A7C15  # an odd number; equal strings have equal hashes, whatever it is


class Table:
    """Columns of numbers that grow row by row; new rows are written when a column is asked for."""

    def __init__(self, **types: str):
        self.size = 0
        self.columns = {name: np.zeros(1024, kind) for name, kind in types.items()}
        self.waiting: list[tuple[int, ...]] = []

    def add(self, *row: int) -> int:
        """The number of a new row."""
        self.waiting.append(row)
        return len(self) - 1

    def __len__(self) -> int:
        return self.size + len(self.waiting)

    def __getitem__(self, name: str) -> np.ndarray:
        if self.waiting:
            self.append(*zip(*self.waiting, strict=True))
            self.waiting = []
        return self.columns[name]

    def append(self, *columns: Sequence[int]) -> None:
        """Writes rows, given by columns."""
        end = self.size + len(columns[0])
        for name, values in zip(self.columns, columns, strict=True):
            if end > len(self.columns[name]):
                more = np.zeros(2 * end - len(self.columns[name]), self.columns[name].dtype)
                self.columns[name] = np.concatenate([self.columns[name], more])
            self.columns[name][self.size : end] = values
        self.size = end


class Vocabulary(dict[str, int]):
    """Numbers of words, and what rules ask of them: `length`, `is_symbol`, `has_letter`, `hash`, `power`.

    The hash is a polynomial over the characters modulo 2^64, so that the hash of words written one after the
    other follows from theirs: `power` is what the hash before a word is multiplied with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strings: list[str] = []
        self.table = Table(length="i8", is_symbol="?", has_letter="?", hash="u8", power="u8")

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self.strings)
        self.strings.append(word)
        return number

    def column(self, name: str) -> np.ndarray:
        """What rules ask of each word."""
        new = self.strings[self.table.size :]
        if new:
            self.table.append(*_properties(new))
        return self.table[name]


def _properties(words: Sequence[str]) -> tuple[np.ndarray, ...]:
    """The columns of a vocabulary for words, none of them empty."""
    letters, symbols = _characters()
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), "<u4")
    ends = np.cumsum(lengths)
    starts = ends - lengths
    powers = np.full(int(lengths.max()) + 1, BASE, np.uint64)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)  # modulo 2^64, as all numbers of this type
    after = np.repeat(ends, lengths) - np.arange(1, len(codes) + 1)
    return (
        lengths,
        np.logical_and.reduceat(symbols[codes], starts),
        np.logical_or.reduceat(letters[codes], starts),
        np.add.reduceat(codes * powers[after], starts),
        powers[lengths],
    )


@functools.lru_cache(maxsize=1)
def _characters() -> tuple[np.ndarray, np.ndarray]:
    """(which characters are letters, which are DataTrove's punctuation), by code point."""
    letters = np.fromiter(map(str.isalpha, map(chr, range(sys.maxunicode + 1))), bool, sys.maxunicode + 1)
    symbols = np.zeros(sys.maxunicode + 1, bool)
    symbols[[ord(character) for character in PUNCTUATION_SET]] = True
    return letters, symbols


@dataclass(frozen=True)
class Words:
    """The words of a text, as numbers in a vocabulary."""

    numbers: np.ndarray
    vocabulary: Vocabulary

    def __len__(self) -> int:
        return len(self.numbers)

    def of(self, name: str) -> np.ndarray:
        """A column of the vocabulary for each word."""
        return self.vocabulary.column(name)[self.numbers]

    def strings(self) -> list[str]:
        """The words themselves."""
        return [self.vocabulary.strings[number] for number in self.numbers.tolist()]

    def different(self, words: Iterable[str]) -> int:
        """How many of some words occur."""
        numbers = {self.vocabulary[word] for word in words if word in self.vocabulary}
        return sum(bool((self.numbers == number).any()) for number in numbers)
