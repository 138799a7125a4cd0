"""Main lines: which lines of a page belong to its main text, by a linear model over their form.

Resiliparse drops what a page's markup names as furniture; what is left are lines of text with their links.
A few shallow features of a line and of its neighbours tell text from the rest, in any language.
Source: Kohlschütter, Fankhauser and Nejdl 2010, "Boilerplate detection using shallow text features".
"""

import html
import re
from typing import NamedTuple

import numpy as np
from resiliparse.extract.html2text import extract_plain_text

WORD, ALONE, CAPITAL, DIGIT = 1, 2, 4, 8
SPACELESS = ((0x0E00, 0x0E7F), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7AF))
"""Thai, kana, Han and Hangul. Source: The Unicode Standard, code charts."""


def _kinds() -> np.ndarray:
    """What each character of the basic plane is; all others are taken for signs."""
    kinds = np.zeros(0x10000, np.uint8)
    for code in range(0x10000):
        letter = chr(code)
        kinds[code] = (WORD if letter.isalnum() or letter == "_" else 0) | (
            CAPITAL if letter.isupper() else 0
        )
    for first, last in SPACELESS:
        kinds[first : last + 1] |= ALONE
    kinds[ord("0") : ord("9") + 1] |= DIGIT
    return kinds


KINDS = _kinds()
LINK = re.compile(r"<a href=\"[^\"]*\">([^<]*(?:<(?!a |/a>)[^<]*)*)</a>")
TAG = re.compile(r"</?(?:a|p|h[1-6]|ul|ol|li|br|pre)\b[^>]*>")
BLOCK = re.compile(r"<(p|h[1-6]|li|pre)>")
BLOCK_END = re.compile(r"</(?:p|h[1-6]|li|pre)>")
ENDS, CLOSING = tuple(".!?:;…。！？：；।؟"), "\"'”’»）)]"
OPEN, CLOSE = "\ue000", "\ue001"  # around a link's text, while the page is cut into lines; in no line
FURNITURE = re.compile(rf"[©|@{OPEN}]|\(c\)|copyright|all rights")
EDGE = re.compile(f"([{OPEN}{CLOSE}])")

WEIGHTS = {
    "text": 0.681,
    "text before": 0.111,
    "text after": 0.167,
    "words before": 0.076,
    "link share": 0.181,
    "link share around": -2.174,
    "text around": 0.441,
    "text further around": -0.360,
    "links": -0.934,
    "capitals": -1.805,
    "digits": -1.402,
    "paragraph": 1.201,
    "heading": 1.016,
    "list item": 1.674,
    "repeated": 0.382,
    "ends as a sentence": -0.254,
    "behind the last text": -1.032,
    "before the title": -3.240,
    "page has a title": 0.360,
    "ahead of the first text": -0.617,
    "position": -1.614,
    "signs of furniture": -1.221,
    "constant": -0.212,
}
"""Log-odds that a line belongs to the main text, by feature.
Source: logistic regression on one half of the pages with known main text, see
tests/benchmarks/curation_extraction.py, which fits them again and measures them on the other half."""
COEFFICIENTS = np.array(list(WEIGHTS.values()))


class Line(NamedTuple):
    """A line of a page."""

    text: str
    block: str
    """The element that starts in it or that it continues: p, h1 to h6, li, pre, or none."""
    links: int
    link_characters: int


class MainText(NamedTuple):
    """The main text of a page, and what tells how far to trust it."""

    text: str
    words: int
    certainty: float
    """The largest probability of a line, 0 where there is none."""


def main_text(page: str, whole: bool = False) -> MainText:
    """The lines that more likely than not belong to the main text; list items start with a dash.

    With `whole`, lines that resiliparse takes for furniture are looked at, too.
    """
    lines = page_lines(page, whole)
    if not lines:
        return MainText("", 0, 0.0)
    log_odds = np.round(line_features(lines) @ COEFFICIENTS, 6)  # processors differ in last digits
    kept = [line for line, odds in zip(lines, log_odds, strict=True) if odds > 0]
    text = "\n".join("- " + line.text if line.block == "li" else line.text for line in kept)
    certainty = float(1 / (1 + np.exp(-log_odds.max())))
    words = int(character_counts([text])[0, 0]) if text else 0
    return MainText(text, words, certainty)


def character_counts(texts: list[str]) -> np.ndarray:
    """(words, characters, capitals, digits) of each text; characters of scripts without spaces are words."""
    codes = np.frombuffer("".join(f"{text}\n" for text in texts).encode("utf-32-le"), dtype="<u4")
    kinds = KINDS[np.minimum(codes, len(KINDS) - 1)]
    starts = (kinds & (WORD | ALONE)) == WORD
    starts[1:] &= (kinds[:-1] & (WORD | ALONE)) != WORD
    lengths = np.array([len(text) for text in texts])
    first = np.concatenate([[0], np.cumsum(lengths[:-1] + 1)])
    counted = [starts | ((kinds & ALONE) > 0), (kinds & CAPITAL) > 0, (kinds & DIGIT) > 0]
    words, capitals, digits = (np.add.reduceat(flags.astype(np.int64), first) for flags in counted)
    return np.stack([words, lengths, capitals, digits], axis=1)


def page_lines(page: str, whole: bool = False) -> list[Line]:
    """The lines that have any text, of a page's main part or of the whole page."""
    marked = extract_plain_text(
        page.replace(OPEN, "").replace(CLOSE, ""),
        preserve_formatting="minimal_html",
        main_content=not whole,
        links=True,
        alt_texts=False,
    )
    lines, block, linked = [], "", False
    for raw in LINK.sub(rf"{OPEN}\1{CLOSE}", marked).split("\n"):
        if not raw or raw.isspace():
            continue
        text, opened, closed = raw, None, None
        if "<" in raw:
            opened, closed = BLOCK.findall(raw), BLOCK_END.search(raw)
            text = TAG.sub("", raw)
        block = opened[-1] if opened else block
        if "&" in text:
            text = html.unescape(text)
        links, inside, linked = _links(text, linked)
        text = text.replace(OPEN, "").replace(CLOSE, "")
        text = text.rstrip() if block == "pre" else " ".join(text.split())
        if text and not text.isspace():
            lines.append(Line(text, block, links, min(inside, len(text))))
        block = "" if closed else block
    return lines


def line_features(lines: list[Line]) -> np.ndarray:
    """A row for each line, a column for each of `WEIGHTS`."""
    number = len(lines)
    words, length, upper, digits = character_counts([line.text for line in lines]).astype(float).T
    links = np.array([line.links for line in lines], float)
    share = np.array([line.link_characters for line in lines]) / length
    blocks = [line.block[:1] for line in lines]
    ends = np.array([line.text.rstrip(CLOSING).endswith(ENDS) for line in lines], float)
    title = next((index for index, line in enumerate(lines) if line.block == "h1"), -1)
    text = words * (1 - share) * (0.3 + 0.7 * ends)
    total = text.sum()
    log_text, log_words = np.log1p(text), np.log1p(words)
    everywhere = np.ones(number)
    columns = [
        log_text,
        np.concatenate([[0.0], log_text[:-1]]),
        np.concatenate([log_text[1:], [0.0]]),
        np.concatenate([[0.0], log_words[:-1]]),
        share,
        _around(share, 3),
        _around(log_text, 3),
        _around(log_text, 8),
        np.log1p(links),
        upper / length,
        digits / length,
        np.array([block == "p" for block in blocks], float),
        np.array([block == "h" for block in blocks], float),
        np.array([block == "l" for block in blocks], float),
        _repeated(lines),
        ends,
        (np.cumsum(text) >= 0.98 * total).astype(float),
        (np.arange(number) < title).astype(float),
        everywhere * (title >= 0),
        (np.cumsum(text) - text <= 0.02 * total).astype(float),
        np.arange(number) / max(1, number - 1),
        _with_signs_of_furniture(lines),
        everywhere,
    ]
    return np.stack(columns, axis=1)


def _links(text: str, linked: bool) -> tuple[int, int, bool]:
    """(links that start, characters within links, whether a link goes on) of a line."""
    if OPEN not in text and CLOSE not in text:
        return 0, len(text) if linked else 0, linked
    inside = 0
    for part in EDGE.split(text):
        if part in (OPEN, CLOSE):
            linked = part == OPEN
        elif linked:
            inside += len(part)
    return text.count(OPEN), inside, linked


def _repeated(lines: list[Line]) -> np.ndarray:
    seen: set[str] = set()
    return np.array([line.text in seen or seen.add(line.text) is not None for line in lines], float)


def _with_signs_of_furniture(lines: list[Line]) -> np.ndarray:
    """One pass over all lines: looking at each alone takes three times as long."""
    found, number = np.zeros(len(lines)), 0
    for sign in FURNITURE.finditer(OPEN.join(line.text for line in lines).lower()):
        if sign[0] == OPEN:
            number += 1
        else:
            found[number] = 1.0
    return found


def _around(values: np.ndarray, reach: int) -> np.ndarray:
    """Mean over the lines that are at most `reach` away."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(index - reach, 0), np.minimum(index + reach + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)
