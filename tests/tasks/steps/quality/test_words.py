"""Words and sentences are those of DataTrove's helpers, and what is remembered is bounded."""

import random

import pytest
from datatrove.utils.text import PUNCTUATION_SET, split_into_sentences, split_into_words

from pipeline_config.errors import SettingsError
from tasks.steps.quality import words as module
from tasks.steps.quality.words import OtherWords, RuleWords, words_of_language

LINES = [
    *(
        "Two sentences. Here they are.",
        "One",
        "",
        " ",
        "?!",
        "...",
        "a.b.c",
        "Wait... What?! Yes.",
        "a!b!c! d",
    ),
    *('He said "No." Then', "No.  Two blanks.  ", "Tab.\tNew", "\xa0Nbsp.\xa0And. ", "End.)  (Begin"),
    *("中文。 中文！", "1. 2. 3.", ":) . :( .", "Dr . Smith", "x: ) y. ' ' Z", "¿Qué? ¡No!"),
    *("one.[1] [2] two", "IS_ALPHAx. y IS_ALPHA's", "😀. 😀"),
]


@pytest.fixture(scope="module")
def english() -> RuleWords:
    tool = words_of_language("en")
    assert isinstance(tool, RuleWords)
    return tool


def test_words_are_those_of_datatrove(english, prose):
    for text in [*LINES, "\n".join(LINES), " ".join(LINES), prose(40)]:
        if module.BREAKS_SPACY in text:  # spaCy takes that word the first time and stumbles afterwards
            split_into_words(text + " ", "en")
        assert english.words(text).strings() == split_into_words(text, "en"), repr(text)


@pytest.mark.parametrize("line", LINES)
def test_sentences_are_those_of_datatrove(english, line):
    assert english.sentences([line])[0] == len(split_into_sentences(line, "en"))


def test_sentences_and_words_of_many_lines_are_the_sum(english):
    choose = random.Random(5)
    for _ in range(200):
        lines = ["".join(choose.choices(LINES, k=choose.randrange(1, 4))) for _ in range(9)]
        lines = [line for line in lines if module.BREAKS_SPACY not in line]
        expected = sum(len(split_into_sentences(line, "en")) for line in lines)
        assert english.sentences(lines) == (
            expected,
            sum(len(split_into_words(line, "en")) for line in lines),
        )


def test_what_is_remembered_changes_nothing_and_is_bounded(prose, monkeypatch):
    monkeypatch.setattr(module, "MOST_CHUNKS", 20)
    tool = RuleWords(words_of_language("en").nlp, "en")
    for seed in range(30):
        text = prose(10, seed=seed) + f" number{seed} :) ) :)"
        assert tool.words(text).strings() == split_into_words(text, "en")
        assert len(tool.chunks) < 20 + 100


def test_columns_tell_what_words_are(english):
    words = english.words("The naïve Straße, 42 — ... 中文 x1 e-mail")
    strings = words.strings()
    assert words.of("length").tolist() == [len(word) for word in strings]
    assert words.of("is_symbol").tolist() == [PUNCTUATION_SET.issuperset(word) for word in strings]
    assert words.of("has_letter").tolist() == [any(map(str.isalpha, word)) for word in strings]


def test_equal_joined_words_have_equal_hashes(english):
    one, other = english.words("abc de f"), english.words("a bcd ef")
    assert one.strings() != other.strings()
    values = []
    for words in (one, other):
        value = 0
        for number, power in zip(words.of("hash").tolist(), words.of("power").tolist(), strict=True):
            value = (value * power + number) % 2**64
        values.append(value)
    assert values[0] == values[1]


@pytest.mark.parametrize("language", ["es", "fi", "haw"])
def test_other_languages_have_the_words_that_datatrove_tells(language):
    tool = words_of_language(language)
    for text in [*LINES, "El perro EE. UU. come. Nada más."]:
        if module.BREAKS_SPACY not in text:
            assert tool.words(text).strings() == split_into_words(text, language)
            assert tool.sentences([text])[0] == len(split_into_sentences(text, language))


def test_special_cases_with_blanks_go_datatroves_way():
    assert isinstance(words_of_language("es"), OtherWords)


@pytest.mark.parametrize(
    ("language", "message"),
    [
        pytest.param("xx-none", "'xx-none' cannot be told: .*doesn't have a tokenizer", id="unknown"),
        pytest.param("ko", "'ko' cannot be told: .*kiwipiepy", id="not installed"),
    ],
)
def test_a_language_whose_words_cannot_be_told_is_refused(language, message):
    with pytest.raises(SettingsError, match=message):
        words_of_language(language)
