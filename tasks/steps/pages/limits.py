"""Page limits: what is checked about a page's markup before any parser sees it.

Parsers take time that grows with the square of a page's depth, and of the attributes of one element; counting
is cheap. What is counted looks like markup, so scripts count as well.
"""

import re

from pipeline_config.curation import TextExtraction

TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
LONG_TAG = 2000  # characters from which on its attributes are counted
ATTRIBUTE = re.compile(r"\s[^\s=]")
EMPTY = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
)
UNNESTED = EMPTY | {"p", "li", "dt", "dd", "tr", "td", "th", "option"}
"""Elements that hold nothing, or that the next of their kind ends.
Source: HTML standard, sections 13.1.2 and 13.1.2.4."""


def excess(page: str, settings: TextExtraction) -> tuple[str, int] | None:
    """(reason, value) of the first limit that a page exceeds, or None."""
    tags = count_tags(page)
    if tags > settings.max_tags:
        return "too_many_tags", tags
    attributes = most_attributes(page)
    if attributes > settings.max_tag_attributes:
        return "too_many_attributes", attributes
    if tags > settings.max_depth and (depth := nesting(page, settings.max_depth)) > settings.max_depth:
        return "too_deep", depth
    return None


def count_tags(page: str) -> int:
    """Opening tags, at most."""
    return page.count("<") - page.count("</")


def most_attributes(page: str) -> int:
    """Attributes of the tag that has most, 0 where no tag is long."""
    pieces = (piece for piece in page.split("<") if len(piece) > LONG_TAG)
    tags = (piece for piece in pieces if piece[0].isalpha() and ">" not in piece[:LONG_TAG])
    return max((len(ATTRIBUTE.findall(tag.partition(">")[0])) for tag in tags), default=0)


def nesting(page: str, enough: int) -> int:
    """Elements that are open at once, at most; counting ends a little above `enough`."""
    depth = deepest = 0
    for tag in TAG.finditer(page):
        closing, name = tag.groups()
        if name.lower() in UNNESTED:
            continue
        depth = max(0, depth - 1) if closing else depth + 1
        deepest = max(deepest, depth)
        if deepest > enough:
            break
    return deepest
