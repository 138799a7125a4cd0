"""Quality heuristics: DataTrove's Gopher, C4 and FineWeb filters, and the value that decided.

The filters name a reason; `deciding_value` computes what they compared with the threshold, for the record.
"""

import re
from collections.abc import Callable

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.filters.gopher_quality_filter import STOP_WORDS
from datatrove.pipeline.filters.gopher_repetition_filter import (
    find_all_duplicate,
    find_duplicates,
    find_top_duplicate,
    get_n_grams,
)
from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION, split_into_sentences, split_into_words

from pipeline_config.curation import C4Quality, FineWebQuality, QualityFiltering
from tasks.steps.shards import DecidingStep, Fate, removed

PARAGRAPH_BREAK, LINE_BREAK, N_GRAM_REASON = re.compile(r"\n{2,}"), re.compile(r"\n+"), re.compile(r"_(\d+)_")


def quality_filters(settings: QualityFiltering) -> list[BaseFilter]:
    """DataTrove's filters in FineWeb's order, with the parameters of the settings."""
    filters = []
    for block, section in (
        (GopherRepetitionFilter, settings.gopher_repetition),
        (GopherQualityFilter, settings.gopher_quality),
        (C4QualityFilter, settings.c4),
        (FineWebQualityFilter, settings.fineweb),
    ):
        if section is not None:
            filters.append(block(**section.model_dump()))
    return filters


class FilterQuality(DecidingStep):
    """Removes a document by the first rule that it breaks; C4's rules also drop lines."""

    name = "quality"

    def __init__(self, settings: QualityFiltering):
        super().__init__()
        self.fineweb = settings.fineweb or FineWebQuality()
        self.c4 = settings.c4
        self.filters = quality_filters(settings)

    def decide(self, document: Document) -> Fate | None:
        for block in self.filters:
            verdict = block.filter(document)
            if verdict is not True:
                reason = verdict[1]
                text = c4_text(document.text, self.c4) if reason == "too_few_sentences" else document.text
                return removed(reason, deciding_value(reason, text, self.fineweb))
        return None


def c4_text(text: str, settings: C4Quality) -> str:
    """The lines that C4's rules leave of a text; only their sentences count."""
    document = Document(text=text, id="")
    C4QualityFilter(**settings.model_dump() | {"min_num_sentences": -1}).filter(document)
    return document.text


def deciding_value(reason: str, text: str, fineweb: FineWebQuality) -> str:
    """What the rule compared with its threshold, as text; empty for a rule without a number."""
    n_gram = N_GRAM_REASON.search(reason)
    if n_gram:
        return f"{_n_gram_share(reason, text, int(n_gram.group(1))):.6g}"
    if reason in VALUES:
        return f"{VALUES[reason](text):.6g}"
    if reason in FINEWEB_VALUES:
        return f"{FINEWEB_VALUES[reason](text, fineweb):.6g}"
    return ""


def _n_gram_share(reason: str, text: str, n: int) -> float:
    words = split_into_words(text)
    if reason.startswith("top_"):
        return find_top_duplicate(get_n_grams(words, n)) / len(text)
    return find_all_duplicate(words, n) / len(text)


def _paragraphs(text: str) -> list[str]:
    return PARAGRAPH_BREAK.split(text.strip())


def _worded(text: str) -> list[str]:
    return [word for word in split_into_words(text) if any(ch not in PUNCTUATION_SET for ch in word)]


def _lines_where(text: str, test: Callable[[str], bool]) -> float:
    lines = text.splitlines()
    return sum(map(test, lines)) / len(lines)


def _mean_word_length(text: str) -> float:
    return float(np.mean([len(word) for word in _worded(text)]))


def _letter_share(text: str) -> float:
    words = split_into_words(text)
    return sum(any(ch.isalpha() for ch in word) for word in words) / len(words)


def _filled_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


VALUES: dict[str, Callable[[str], float]] = {
    "dup_para_frac": lambda t: find_duplicates(_paragraphs(t))[0] / len(_paragraphs(t)),
    "dup_para_char_frac": lambda t: find_duplicates(_paragraphs(t))[1] / len(t),
    "dup_line_frac": lambda t: find_duplicates(LINE_BREAK.split(t))[0] / len(LINE_BREAK.split(t)),
    "dup_line_char_frac": lambda t: find_duplicates(LINE_BREAK.split(t))[1] / len(t),
    "gopher_short_doc": lambda t: len(_worded(t)),
    "gopher_long_doc": lambda t: len(_worded(t)),
    "gopher_below_avg_threshold": _mean_word_length,
    "gopher_above_avg_threshold": _mean_word_length,
    "gopher_too_many_hashes": lambda t: t.count("#") / len(split_into_words(t)),
    "gopher_too_many_ellipsis": lambda t: (t.count("...") + t.count("…")) / len(split_into_words(t)),
    "gopher_too_many_bullets": lambda t: _lines_where(t, lambda s: s.lstrip().startswith(("•", "-"))),
    "gopher_too_many_end_ellipsis": lambda t: _lines_where(t, lambda s: s.rstrip().endswith(("...", "…"))),
    "gopher_below_alpha_threshold": _letter_share,
    "gopher_enough_stop_words": lambda t: len(set(STOP_WORDS) & set(split_into_words(t))),
    "too_few_sentences": lambda t: sum(len(split_into_sentences(line)) for line in t.splitlines()),
    "curly_bracket": lambda t: t.count("{"),
    "lorem_ipsum": lambda t: t.lower().count("lorem ipsum"),
}
FINEWEB_VALUES: dict[str, Callable[[str, FineWebQuality], float]] = {
    "line_punct_ratio": lambda t, _: (
        sum(line.endswith(tuple(TERMINAL_PUNCTUATION)) for line in _filled_lines(t)) / len(_filled_lines(t))
    ),
    "short_line_ratio": lambda t, s: (
        sum(len(line) <= s.short_line_length for line in _filled_lines(t)) / len(_filled_lines(t))
    ),
    "char_dup_ratio": lambda t, _: find_duplicates(_filled_lines(t))[1] / len(t.replace("\n", "")),
    "list_ratio": lambda t, _: t.count("\n") / len(split_into_words(t)),
}
