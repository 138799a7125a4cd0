"""The rules of Gopher, C4 and FineWeb as pure functions: what each one found, next to its threshold.

Each function yields its rules in DataTrove's order, so that the first one that is broken is DataTrove's
reason. Counts and shares are computed as DataTrove computes them, to the last bit.

Source: `datatrove/pipeline/filters/`, version 0.10.1; the papers are named in the settings.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from datatrove.pipeline.filters.c4_filters import (
    CITATION_REGEX,
    ELLIPSIS,
    END_PUNCTUATION,
    POLICY_SUBSTRINGS,
)
from datatrove.utils.text import TERMINAL_PUNCTUATION

from pipeline_config.curation import (
    C4Quality,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    QualityRules,
)
from tasks.steps.quality.repetition import duplicated_n_gram_characters, duplicates, top_n_gram_characters
from tasks.steps.quality.vocabulary import Words
from tasks.steps.quality.words import KeptLines, OtherWords, RuleWords

PARAGRAPH_BREAK = re.compile(r"\n{2,}")
SIGNS = ("[", "{", "lorem ipsum", "javascript", *POLICY_SUBSTRINGS)  # of citations and lines that are dropped
ABOVE, BELOW = ">", "<"


class Finding(NamedTuple):
    """What a rule compared with its threshold, and whether the document breaks it.

    `side` is where broken values lie; `value` is None where the text has nothing to measure.
    """

    reason: str
    value: float | None
    side: str = ABOVE
    threshold: float = 0.0
    is_on: bool = True

    @property
    def is_broken(self) -> bool:
        """Whether the rule removes the document."""
        if not self.is_on or self.value is None:
            return False
        return self.value > self.threshold if self.side == ABOVE else self.value < self.threshold

    def __str__(self) -> str:
        return "" if self.value is None else f"{self.value:.6g} {self.side} {self.threshold:g}"


EMPTY = Finding("empty", 1.0)


class Text:
    """A text with its words, which are made at first use."""

    def __init__(self, text: str, tool: RuleWords | OtherWords):
        self.text, self.tool = text, tool

    @functools.cached_property
    def words(self) -> Words:
        """All words of the text."""
        return self.tool.words(self.text)


def gopher_repetition(text: Text, settings: GopherRepetition) -> Iterator[Finding]:
    """Repeated paragraphs, lines and n-grams."""
    characters = len(text.text)
    if not characters:
        yield EMPTY
        return
    for kind, parts, share, character_share in (
        (
            "para",
            paragraphs(text.text.strip()),
            settings.dup_para_frac,
            settings.dup_para_char_frac,
        ),
        ("line", lines_of(text.text), settings.dup_line_frac, settings.dup_line_char_frac),
    ):
        count, repeated = duplicates(parts)
        yield Finding(f"dup_{kind}_frac", count / len(parts), ABOVE, share, bool(share))
        found = repeated / characters
        yield Finding(f"dup_{kind}_char_frac", found, ABOVE, character_share, bool(character_share))
    tops = top_n_gram_characters(text.words, [n for n, _ in settings.top_n_grams])
    for (n, share), top in zip(settings.top_n_grams, tops, strict=True):
        yield Finding(f"top_{n}_gram", None if top is None else top / characters, ABOVE, share)
    counts = duplicated_n_gram_characters(text.words, [n for n, _ in settings.dup_n_grams])
    for (n, share), repeated in zip(settings.dup_n_grams, counts, strict=True):
        yield Finding(f"duplicated_{n}_n_grams", repeated / characters, ABOVE, share)


def paragraphs(text: str) -> list[str]:
    """What two or more line breaks part."""
    return PARAGRAPH_BREAK.split(text) if "\n\n" in text else [text]


def lines_of(text: str) -> list[str]:
    """What one or more line breaks part; empty only at both ends of the text."""
    first, *rest = text.split("\n")
    return [first, *filter(None, rest[:-1]), rest[-1]] if rest else [first]


def gopher_quality(text: Text, settings: GopherQuality) -> Iterator[Finding]:
    """How many words there are, how long they are, and what the lines look like.

    Raises:
        ZeroDivisionError: a text without words or lines got past the number of words, as in DataTrove.
    """
    words, characters = text.words, text.text
    is_real = ~words.of("is_symbol")
    real = int(is_real.sum())
    least, most = settings.min_doc_words, settings.max_doc_words
    yield Finding("gopher_short_doc", real, BELOW, least, bool(least))
    yield Finding("gopher_long_doc", real, ABOVE, most, bool(most))
    mean = int(words.of("length")[is_real].sum()) / real if real else None
    shortest, longest = settings.min_avg_word_length, settings.max_avg_word_length
    yield Finding("gopher_below_avg_threshold", mean, BELOW, shortest, bool(shortest))
    yield Finding("gopher_above_avg_threshold", mean, ABOVE, longest, bool(longest))
    symbols = settings.max_symbol_word_ratio
    if symbols or len(words):
        ellipses = characters.count("...") + characters.count("…")
        hashes = characters.count("#") / len(words)
        yield Finding("gopher_too_many_hashes", hashes, ABOVE, symbols, bool(symbols))
        yield Finding("gopher_too_many_ellipsis", ellipses / len(words), ABOVE, symbols, bool(symbols))
    yield from _line_shapes(characters.splitlines(), settings)
    letters = settings.max_non_alpha_words_ratio
    if letters or len(words):
        share = int(words.of("has_letter").sum()) / len(words)
        yield Finding("gopher_below_alpha_threshold", share, BELOW, letters, bool(letters))
    stops, found = settings.min_stop_words, words.different(settings.stop_words)
    yield Finding("gopher_enough_stop_words", found, BELOW, stops, bool(stops))


def _line_shapes(lines: list[str], settings: GopherQuality) -> Iterator[Finding]:
    bullets, ellipses = settings.max_bullet_lines_ratio, settings.max_ellipsis_lines_ratio
    if bullets or lines:
        count = sum(line.lstrip().startswith(("•", "-")) for line in lines)
        yield Finding("gopher_too_many_bullets", count / len(lines), ABOVE, bullets, bool(bullets))
    if ellipses or lines:
        count = sum(line.rstrip().endswith(("...", "…")) for line in lines)
        yield Finding("gopher_too_many_end_ellipsis", count / len(lines), ABOVE, ellipses, bool(ellipses))


@dataclass
class C4Lines:
    """What C4's rules make of a text, line by line.

    `text` is what the document becomes; `sentences` and `words` (where known) are those of the kept lines.
    """

    text: str
    reason: str | None
    findings: list[Finding]
    dropped_lines: int
    words: int | None


def c4_lines(text: str, tool: RuleWords | OtherWords, settings: C4Quality) -> C4Lines:
    """The lines that C4's rules leave of a text, and the first rule that removes the document, if any."""
    kept = KeptLines()
    pages = {"lorem_ipsum": 0, "curly_bracket": 0}
    first = None
    lower = text.lower()
    signs = [sign for sign in SIGNS if sign in lower]
    lower_lines = lower.splitlines() if signs else []
    for number, whole in enumerate(text.splitlines()):
        words, stripped = whole.split(), whole.strip()
        kept.counts.append(len(words))
        is_plain = not settings.filter_no_terminal_punct and not (
            signs and any(sign in lower_lines[number] for sign in signs)
        )
        line, verdict = (
            _word_counts(stripped, words, settings) if is_plain else _c4_line(stripped, words, settings)
        )
        if verdict is None:
            kept.lines.append(line)
            is_same = line is stripped and " ".join(words) == line
            kept.places.append(number if is_same else -1)
        elif verdict in pages:
            pages[verdict] += 1
            first = first or verdict
    sentences, words = tool.sentences_within(text, kept)
    least = settings.min_num_sentences
    too_few = Finding("too_few_sentences", sentences, BELOW, least, least != -1)
    findings = [
        Finding("lorem_ipsum", pages["lorem_ipsum"], ABOVE, 0, settings.filter_lorem_ipsum),
        Finding("curly_bracket", pages["curly_bracket"], ABOVE, 0, settings.filter_curly_bracket),
        too_few,
    ]
    reason = first or (too_few.reason if too_few.is_broken else None)
    dropped = len(kept.counts) - len(kept.lines) - sum(pages.values())
    return C4Lines("\n".join(kept.lines).strip(), reason, findings, dropped, words)


def _word_counts(line: str, words: list[str], settings: C4Quality) -> tuple[str, str | None]:
    """The same as `_c4_line`, of a line that holds none of the signs."""
    if len(words) < settings.min_words_per_line:
        return line, "too_few_words"
    return line, "too_long_word" if _has_long_word(line, words, settings.max_word_length) else None


def _has_long_word(line: str, words: list[str], longest: int) -> bool:
    return longest != -1 and len(line) > longest and any(len(word) > longest for word in words)


def _c4_line(line: str, words: list[str], settings: C4Quality) -> tuple[str, str | None]:
    """(the line without citations, why it is dropped or its document removed)."""
    if _has_long_word(line, words, settings.max_word_length):
        return line, "too_long_word"
    if settings.remove_citations and "[" in line:
        line = CITATION_REGEX.sub("", line)
    if settings.filter_no_terminal_punct and (not line.endswith(END_PUNCTUATION) or line.endswith(ELLIPSIS)):
        return line, "no_terminal_punctuation"
    if len(words) < settings.min_words_per_line:
        return line, "too_few_words"
    lower = line.lower()
    if settings.filter_lorem_ipsum and "lorem ipsum" in lower:
        return line, "lorem_ipsum"
    if settings.filter_javascript and "javascript" in lower:
        return line, "javascript"
    if settings.filter_curly_bracket and "{" in line:
        return line, "curly_bracket"
    if settings.filter_policy and any(policy in lower for policy in POLICY_SUBSTRINGS):
        return line, "policy"
    return line, None


def fineweb(text: Text, settings: FineWebQuality, words: int | None = None) -> Iterator[Finding]:
    """How lines end, how short they are, and how many there are for the words (`words`, where known)."""
    characters = text.text
    lines = [line for line in characters.split("\n") if line.strip()]
    if not lines:
        yield EMPTY
        return
    ends = sum(line[-1] in TERMINAL_PUNCTUATION for line in lines) / len(lines)
    yield Finding("line_punct_ratio", ends, BELOW, settings.line_punct_thr)
    short = sum(len(line) <= settings.short_line_length for line in lines) / len(lines)
    yield Finding("short_line_ratio", short, ABOVE, settings.short_line_thr)
    breaks = characters.count("\n")
    repeated = duplicates(lines)[1] / (len(characters) - breaks)
    yield Finding("char_dup_ratio", repeated, ABOVE, settings.char_duplicates_ratio)
    count = len(text.words) if words is None else words
    yield Finding("list_ratio", breaks / count, ABOVE, settings.new_line_ratio)


def rules_of(settings: QualityRules) -> dict[str, tuple[str, float]]:
    """Every rule that the settings switch on: where broken values lie, and the threshold."""
    probe = Text("A.", OtherWords("en"))
    found: list[Finding] = []
    if settings.gopher_repetition:
        found += gopher_repetition(probe, settings.gopher_repetition)
    if settings.gopher_quality:
        found += gopher_quality(probe, settings.gopher_quality)
    if settings.c4:
        found += c4_lines(probe.text, probe.tool, settings.c4).findings
    if settings.fineweb:
        found += fineweb(probe, settings.fineweb)
    return {one.reason: (one.side, one.threshold) for one in found if one.is_on}
