"""Extractors: engines that make the main text of a page, behind one call.

An engine takes a page as valid Unicode and returns an `Extraction`. Measured against each other in
tests/benchmarks/curation_extraction.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import trafilatura
from lxml import etree
from lxml.html import HtmlComment, HtmlElement, HtmlEntity, HtmlProcessingInstruction
from resiliparse.extract.html2text import extract_plain_text

from pipeline_config.curation import LanguagePrefilter, TextExtraction
from tasks.steps.language_identification import load_model
from tasks.steps.pages.limits import count_tags
from tasks.steps.pages.main_lines import MainText, main_text

PREFILTER_CHARACTERS = 10_000

# lxml asks Python for the class of every element, to have others for forms; texts are the same without
trafilatura.utils.HTML_PARSER.set_element_class_lookup(
    etree.ElementDefaultClassLookup(
        element=HtmlElement, comment=HtmlComment, pi=HtmlProcessingInstruction, entity=HtmlEntity
    )
)


class Extraction(NamedTuple):
    """What an engine made of a page."""

    text: str
    engine: str
    """The engine that the text is of."""


class ForeignLanguage(Exception):
    """A page that is in none of the wanted languages; the first argument says in which it is."""


Engine = Callable[[str], Extraction]


def engine_for(settings: TextExtraction) -> Engine:
    """The engine that settings ask for."""
    engines: dict[str, Callable[[str, TextExtraction], Extraction]] = {
        "blend": blend,
        "lines": lambda page, settings: lines(page),
        "resiliparse": lambda page, settings: resiliparse(page),
        "trafilatura": careful,
    }
    return lambda page: engines[settings.engine](page, settings)


def lines(page: str) -> Extraction:
    """Resiliparse's main content, but lines that look like furniture."""
    return Extraction(main_text(page).text, "lines")


def resiliparse(page: str) -> Extraction:
    """Resiliparse's main content. Bullets and alternative texts cost precision, so they are off."""
    text = extract_plain_text(
        page, preserve_formatting=True, main_content=True, list_bullets=False, alt_texts=False
    )
    return Extraction("\n".join(line.strip() for line in text.split("\n") if line.strip()), "resiliparse")


def careful(page: str, settings: TextExtraction) -> Extraction:
    """Trafilatura's text, or that of `lines` for a page that is too large for it.

    Trafilatura's deduplication is off: it makes a text depend on the pages before it.

    Raises:
        ForeignLanguage: the page does not pass the language prefilter.
    """
    if count_tags(page) > settings.careful_max_tags and settings.fall_back:
        return lines(page)
    if settings.language_prefilter.languages:
        check_language(main_text(page).text, settings.language_prefilter)
    return _trafilatura(page, settings)


def blend(page: str, settings: TextExtraction) -> Extraction:
    """The lines of the main part; where they are doubtful, of the whole page; where those are, trafilatura's.

    Raises:
        ForeignLanguage: the page is doubtful and does not pass the language prefilter.
    """
    found = main_text(page)
    if is_doubtful(found, settings):
        found = max(main_text(page, whole=True), found, key=lambda text: text.words)
    if not is_doubtful(found, settings) or count_tags(page) > settings.careful_max_tags:
        return Extraction(found.text, "lines")
    if settings.language_prefilter.languages:
        check_language(found.text, settings.language_prefilter)
    extraction = _trafilatura(page, settings, fast=True)
    return extraction if extraction.text else Extraction(found.text, "lines")


def is_doubtful(found: MainText, settings: TextExtraction) -> bool:
    """Whether a text is too short, or no line of it surely is main text."""
    return found.words < settings.doubtful_words or found.certainty < settings.doubtful_certainty


def check_language(text: str, prefilter: LanguagePrefilter) -> None:
    """Nothing, if a text may be in one of the languages; an empty one may be in any.

    Raises:
        ForeignLanguage: no language scores high enough.
    """
    text = " ".join(text[:PREFILTER_CHARACTERS].split())
    if not text:
        return
    labels, scores = load_model().predict(text, k=-1)
    found = {label.removeprefix("__label__"): score for label, score in zip(labels, scores, strict=True)}
    best = max(found.get(language, 0.0) for language in prefilter.languages)
    if best < prefilter.min_score:
        likely = labels[0].removeprefix("__label__")
        raise ForeignLanguage(f"{likely} {scores[0]:.4f}, {'/'.join(prefilter.languages)} {best:.4f}")


def _trafilatura(page: str, settings: TextExtraction, fast: bool = False) -> Extraction:
    """Trafilatura's text; `fast`: without the two other extractors that it compares itself with."""
    text = trafilatura.extract(
        page,
        fast=fast,
        favor_precision=settings.favour_precision,
        include_comments=settings.comments,
        deduplicate=False,
    )
    return Extraction(text or "", "trafilatura")
