"""Repetition in numbers gives what DataTrove counts in strings."""

import random

import numpy as np
import pytest
from datatrove.pipeline.filters.gopher_repetition_filter import (
    find_all_duplicate,
    find_duplicates,
    find_top_duplicate,
    get_n_grams,
)

from tasks.steps.quality import repetition
from tasks.steps.quality.repetition import duplicated_n_gram_characters, duplicates, top_n_gram_characters
from tasks.steps.quality.words import words_of_language

VOCABULARIES = {
    "few words": ["a", "b"],
    "words that run together": ["a", "aa", "ab", "b", "ba", "aaa"],
    "many words": [f"w{n}" for n in range(300)],
}


@pytest.fixture(params=VOCABULARIES)
def texts(request) -> list[str]:
    choose = random.Random(request.param)
    words = VOCABULARIES[request.param]
    return [" ".join(choose.choices(words, k=choose.randrange(1, 120))) for _ in range(300)] + [""]


def check(texts: list[str]) -> None:
    for text in texts:
        words = words_of_language("en").words(text)
        strings = words.strings()
        grams = {n: get_n_grams(strings, n) for n in range(1, 6)}
        expected = [find_top_duplicate(found) if found else None for found in grams.values()]
        assert top_n_gram_characters(words, list(grams)) == expected
        sizes = [10, 2, 5, 6, 1]
        assert duplicated_n_gram_characters(words, sizes) == [find_all_duplicate(strings, n) for n in sizes]


def test_n_grams_count_as_in_datatrove(texts):
    check(texts)


def test_collisions_of_hashes_change_nothing(texts, monkeypatch):
    """Every n-gram gets one of three numbers: what differs is told apart by its characters."""
    whole = repetition._repeated
    monkeypatch.setattr(repetition, "_repeated", lambda places, codes: whole(places, codes % np.uint64(3)))
    for text in texts:
        words = words_of_language("en").words(text)
        expected = [find_all_duplicate(words.strings(), n) for n in (5, 6)]
        assert duplicated_n_gram_characters(words, [5, 6]) == expected


@pytest.mark.parametrize("parts", [[], ["a"], ["a", "a", "", ""], ["ab", "c", "ab", "ab"]])
def test_duplicate_parts_count_as_in_datatrove(parts):
    assert duplicates(parts) == find_duplicates(parts)
