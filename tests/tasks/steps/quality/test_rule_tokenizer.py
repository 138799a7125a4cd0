"""The rule tokenizer gives spaCy's tokens of any text, and in linear time."""

import random
import time

import pytest
from datatrove.utils.word_tokenizers import load_word_tokenizer

from tasks.steps.quality.rule_tokenizer import MARGIN, RuleTokenizer, is_rule_based

PARTS = """
's n't km US$ http:// www. a.b co.uk ... -- °C @x.com :) :( ^_^ Mr. a.m. e.g. I'm 1.000,5 km²
don't word Word, etc.
"""
SIGNS = [
    *"aAbsSdmkKg019.,:;!?'\"()[]{}-_/\\@#$%&*+=<>|~^`’‘“”«»…—–·$€£😀中。éßя١।\u00ad\u200b\u0301\x00",
    *PARTS.split(),
]
BLANKS = [" ", " ", " ", " ", "  ", "\n", "\t", "\xa0", " \n", "\u2003", "\r\n", "\x1c", "\x85"]
WORDS = """
😀😀 ... (((a))) http://a.b/c?d=e#f a@b.com user:pass@host.org www.example.com. 10.0.0.1:80 'Cause 'cause'
IS_ALPHA nsubj - a-b a--b 1-2 10km $5 US$5 it's its' C++ o'clock :-)
"""
EDGES = [
    *("", " ", "  ", "\n", " a", "a ", "a  ", "\n a", "a\n\nb", ") :)", "x) :)y", ": )", "' '", "a :) :( b"),
    *(
        "I 'm",
        "he 's",
        "Dr .",
        "p. m.",
        ". . .",
        "\x00",
        "a\x00b",
        "中文 中文。",
        "\r\n\r\n",
        "\u2028",
        "10 km",
    ),
    *WORDS.split(),
]


@pytest.fixture(scope="module")
def spacy():
    """spaCy's tokens as DataTrove gets them, and ours, by language."""

    def tokenizers(language: str, window: int = 48):
        nlp = load_word_tokenizer(language).tokenizer

        def theirs(text: str) -> list[str]:
            with nlp.memory_zone():
                return [token.text for token in nlp.tokenizer(text)]

        return theirs, RuleTokenizer(nlp.tokenizer, window, plain_letters=language == "en").tokens

    return tokenizers


def odd_text(choose: random.Random, rules: list[str]) -> str:
    """Special cases, signs and blanks in any order."""
    parts = []
    for _ in range(choose.randrange(1, 14)):
        kind = choose.random()
        if kind < 0.3:
            parts.append(choose.choice(rules))
        elif kind < 0.8:
            parts += choose.choices(SIGNS, k=choose.randrange(1, 7))
        elif kind < 0.9:
            parts.append(choose.choice(SIGNS) * choose.randrange(1, 90))
        else:
            parts += choose.choices(SIGNS, k=choose.randrange(30, 160))
        parts.append(choose.choice([*BLANKS, "", "", "", ""]))
    return "".join(parts)


@pytest.mark.parametrize("text", EDGES)
def test_tokens_of_edge_cases_are_spacys(spacy, text):
    theirs, ours = spacy("en")
    assert ours(text) == theirs(text)


@pytest.mark.parametrize("window", [48, MARGIN + 1], ids=["default window", "smallest window"])
@pytest.mark.parametrize("language", ["en", "de", "fr", "it", "pt"])
def test_tokens_of_random_texts_are_spacys(spacy, language, window):
    theirs, ours = spacy(language, window)
    rules = list(load_word_tokenizer(language).tokenizer.tokenizer.rules)
    choose = random.Random(f"{language} {window}")
    for _ in range(1500 if language == "en" else 300):
        text = odd_text(choose, rules)
        assert ours(text) == theirs(text), repr(text)


def test_english_words_between_signs_are_spacys(spacy):
    """Words, special cases among them, with hyphens, behind an opening sign and before closing ones."""
    theirs, ours = spacy("en")
    rules = [rule for rule in load_word_tokenizer("en").tokenizer.tokenizer.rules if rule.isalpha()]
    choose = random.Random(4)
    texts = (
        choose.choice(["", "", "(", '"', "“", "["])
        + "-".join(choose.choices([*rules, "word", "Sea", "USA"], k=choose.choice([1, 1, 2, 3])))
        + "".join(choose.choices(',;:!?)"”].', k=choose.randrange(5)))
        for _ in range(8000)
    )
    assert [text for text in texts if ours(text) != theirs(text)] == []


REPEATED = [
    "(",
    "😀",
    "'",
    "a:",
    "http://a.b/",
    "' ",
    "(" + "." * 33,
    "a@",
    "a.b@",
    "$",
    "\"'",
    ") :) ",
    ":) ",
    "1-",
    "中。",
]


def cpu_seconds(tokens, text: str) -> float:
    """The shortest of three runs."""
    found = []
    for _ in range(3):
        started = time.thread_time()
        tokens(text)
        found.append(time.thread_time() - started)
    return min(found)


@pytest.mark.parametrize("part", REPEATED)
def test_eight_times_the_text_takes_about_eight_times_as_long(spacy, part):
    """Linear time would be 8 x, quadratic 64 x; spaCy takes half a minute for 20,000 brackets."""
    _, ours = spacy("en")
    assert cpu_seconds(ours, part * 24_000) < 24 * max(cpu_seconds(ours, part * 3000), 0.005)


@pytest.mark.parametrize("sign", ["!", ")", '"', "."])
def test_a_word_with_many_signs_takes_time_in_proportion(spacy, sign):
    _, ours = spacy("en")
    assert cpu_seconds(ours, "(a" + sign * 48_000) < 24 * max(cpu_seconds(ours, "(a" + sign * 6000), 0.005)


def test_special_cases_with_blanks_are_left_to_spacy():
    tokenizers = {name: load_word_tokenizer(name).tokenizer.tokenizer for name in ("en", "es")}
    assert {name: is_rule_based(tokenizer) for name, tokenizer in tokenizers.items()} == {
        "en": True,
        "es": False,
    }


def test_a_lone_surrogate_is_refused_as_spacy_refuses_it(spacy):
    theirs, ours = spacy("en")
    for tokens in (theirs, ours):
        with pytest.raises(UnicodeEncodeError):
            tokens("a \ud800 b")
