"""How much of a text repeats: lines, paragraphs and n-grams, with the numbers that DataTrove's filter gets.

DataTrove writes the words of each n-gram in one string and compares those. Here numbers are compared that
are equal where the strings are; only where numbers are equal are strings written.

Source: `datatrove/pipeline/filters/gopher_repetition_filter.py`, version 0.10.1; Rae et al. 2021, table A1.
"""

from collections.abc import Sequence

import numpy as np

from tasks.steps.quality.vocabulary import Words

MULTIPLIER, SLOT_BITS = 0x9E3779B97F4A7C15, 15  # slots by the upper bits of a product (Knuth, section 6.4)
SLOTS = np.zeros(1 << SLOT_BITS, np.int32)  # which code came last into a slot; whatever it held before


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
    numbers, found = words.numbers.astype(np.int64), {}
    lengths = np.concatenate([[0], np.cumsum(words.of("length"))])
    places, codes = np.arange(len(numbers)), numbers  # of the n-grams that may occur more than once
    for n in range(1, min(max(sizes, default=0), len(numbers)) + 1):
        if n > 1:
            fit = places + n <= len(numbers)
            places = places[fit]
            codes = codes[fit] * len(words.vocabulary) + numbers[places + n - 1]
        if n in sizes or n > 1:
            places, codes, top = _repeated(places, codes)
            if n in sizes:
                place, count = top
                found[n] = int(lengths[place + n] - lengths[place] + n - 1) * count
    return [found.get(n) for n in sizes]


def _repeated(places: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """(places of codes that occur more than once, their ranks, first place and number of the most frequent).

    Where no code occurs twice, the first of all n-grams is the most frequent one.
    """
    clash = _clashing(codes)
    if not len(clash):
        return places[:0], codes[:0], (0, 1)
    places, codes = places[clash], codes[clash]
    ordered = np.sort(codes)
    starts = np.append(np.flatnonzero(_begins(ordered)), len(ordered))
    counts = starts[1:] - starts[:-1]
    several = counts > 1
    values, counts = ordered[starts[:-1][several]], counts[several]
    if not len(values):
        return places[:0], codes[:0], (0, 1)
    ranks = np.minimum(np.searchsorted(values, codes), len(values) - 1)
    known = values[ranks] == codes
    places, ranks = places[known], ranks[known]
    most = int(counts.max())
    first = int(places[np.argmax(counts[ranks] == most)])
    return places, ranks, (first, most)


def _begins(ordered: np.ndarray) -> np.ndarray:
    """Where another number begins."""
    begins = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return begins


def _clashing(codes: np.ndarray) -> np.ndarray:
    """Places of codes that may occur more than once, and of all that do: those whose slot is shared."""
    slots = (codes.view(np.uint64) * np.uint64(MULTIPLIER)) >> np.uint64(64 - SLOT_BITS)
    slots = slots.view(np.int64)
    own = np.arange(len(codes), dtype=np.int32)
    SLOTS[slots] = own
    lost = SLOTS[slots] != own
    if not lost.any():
        return own[:0]
    SLOTS[slots[lost]] = -1
    return np.flatnonzero(SLOTS[slots] == -1)


def duplicated_n_gram_characters(words: Words, sizes: Sequence[int]) -> list[int]:
    """For each n: characters in n-grams that were there before; the search goes on behind each of them.

    Words are joined without anything between them, so that n-grams of other words can be the same.
    """
    found = {}
    hashes, powers = words.of("hash"), words.of("power")
    gram = hashes
    lengths = np.concatenate([[0], np.cumsum(words.of("length"))])
    for n in range(1, min(max(sizes, default=0), len(words)) + 1):
        if n > 1:
            gram = gram[:-1] * powers[n - 1 :] + hashes[n - 1 :]
        if n in sizes:
            places, names, _ = _repeated(np.arange(len(gram)), gram)
            if len(places):
                names = names.tolist() if _same_words(words, places, names, n) else _strings(words, places, n)
                found[n] = _skip_duplicates(places, names, lengths[places + n] - lengths[places], n)
    return [found.get(n, 0) for n in sizes]


def _same_words(words: Words, places: np.ndarray, names: np.ndarray, n: int) -> bool:
    """Whether n-grams with one name have the same words: if so, their strings are the same."""
    first = np.zeros(int(names.max()) + 1, np.intp)
    first[names[::-1]] = places[::-1]
    first = first[names]
    return all((words.numbers[places + k] == words.numbers[first + k]).all() for k in range(n))


def _strings(words: Words, places: np.ndarray, n: int) -> list[str]:
    """The n-grams, to tell those with one hash and different words apart."""
    strings = words.strings()
    return ["".join(strings[place : place + n]) for place in places.tolist()]


def _skip_duplicates(places: np.ndarray, names: Sequence[object], lengths: np.ndarray, n: int) -> int:
    seen: set[object] = set()
    characters = go_on = 0
    for place, name, length in zip(places.tolist(), names, lengths.tolist(), strict=True):
        if place < go_on:
            continue
        if name in seen:
            characters += length
            go_on = place + n
        else:
            seen.add(name)
    return characters
