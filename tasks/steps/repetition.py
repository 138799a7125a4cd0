"""How much of a text repeats: lines, paragraphs and n-grams, with the numbers that DataTrove's filter gets.

DataTrove writes the words of each n-gram in one string and compares those. Here numbers are compared that
are equal where the strings are; only where numbers are equal are strings written.

Source: `datatrove/pipeline/filters/gopher_repetition_filter.py`, version 0.10.1; Rae et al. 2021, table A1.
"""

from collections.abc import Sequence

import numpy as np

from tasks.steps.words import Words

LARGEST = np.iinfo(np.int64).max


def duplicates(parts: Sequence[str]) -> tuple[int, int]:
    """(parts that were there before, characters in them)."""
    if len(set(parts)) == len(parts):
        return 0, 0
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        else:
            seen.add(part)
    return count, characters


def top_n_gram_characters(words: Words, sizes: Sequence[int]) -> list[int | None]:
    """For each n: characters of the most frequent n-gram, the first of several, times how often it occurs.

    Words are joined by blanks. None where the text has fewer than n words.
    """
    numbers, different = _ranks(words.numbers)
    grams, found = n_grams(numbers, different, max(sizes, default=0)), {}
    lengths = np.concatenate([[0], np.cumsum(words.of("length"))])
    for n, codes in grams:
        if n in sizes:
            place, count = _most_frequent(codes)
            found[n] = int(lengths[place + n] - lengths[place] + n - 1) * count
    return [found.get(n) for n in sizes]


def n_grams(numbers: np.ndarray, different: int, largest: int) -> list[tuple[int, np.ndarray]]:
    """(n, a number for each n-gram), up to the largest n that there is; equal n-grams have equal numbers."""
    found = []
    codes, most = numbers, different
    for n in range(1, min(largest, len(numbers)) + 1):
        if n > 1:
            if most > LARGEST // max(1, different):
                codes, most = _ranks(codes)
            codes = codes[:-1] * different + numbers[n - 1 :]
            most *= different
        found.append((n, codes))
    return found


def _ranks(numbers: np.ndarray) -> tuple[np.ndarray, int]:
    """(the place of each number among all different ones, how many different ones there are)."""
    values = _different(np.sort(numbers))
    return np.searchsorted(values, numbers), len(values)


def _different(ordered: np.ndarray) -> np.ndarray:
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def _most_frequent(codes: np.ndarray) -> tuple[int, int]:
    """(first place of the most frequent number, how often it occurs); of several the one that comes first."""
    ordered = np.sort(codes)
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(starts, append=len(ordered))
    most = int(counts.max())
    if most == 1:
        return 0, 1
    return int(_places(codes, ordered[starts[counts == most]])[0]), most


def duplicated_n_gram_characters(words: Words, sizes: Sequence[int]) -> list[int]:
    """For each n: characters in n-grams that were there before; the search goes on behind each of them.

    Words are joined without anything between them, so that n-grams of other words can be the same.
    """
    found = {}
    hashes, powers, gram = words.of("hash"), words.of("power"), words.of("hash")
    strings: list[str] = []
    for n in range(1, min(max(sizes, default=0), len(words)) + 1):
        if n > 1:
            gram = gram[:-1] * powers[n - 1 :] + hashes[n - 1 :]
        if n in sizes:
            places = _repeated(gram)
            if len(places) and not strings:
                strings = words.strings()
            found[n] = _skip_duplicates(strings, places.tolist(), n)
    return [found.get(n, 0) for n in sizes]


def _repeated(hashes: np.ndarray) -> np.ndarray:
    """Places of numbers that occur more than once."""
    ordered = np.sort(hashes)
    return _places(hashes, _different(ordered[1:][ordered[1:] == ordered[:-1]]))


def _places(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Places of numbers that are among the wanted ones, which are in order."""
    if len(wanted) < 2:
        return np.flatnonzero(numbers == wanted[0]) if len(wanted) else np.zeros(0, np.intp)
    nearest = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return np.flatnonzero(wanted[nearest] == numbers)


def _skip_duplicates(strings: list[str], places: list[int], n: int) -> int:
    seen: set[str] = set()
    characters = go_on = 0
    for place in places:
        if place < go_on:
            continue
        gram = "".join(strings[place : place + n])
        if gram in seen:
            characters += len(gram)
            go_on = place + n
        else:
            seen.add(gram)
    return characters
