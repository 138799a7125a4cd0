"""What a page's owner says about its use: robots directives, text-and-data-mining reservation, language.

Read from the HTTP header and the head of the page, recorded always, acted on only where a setting says so:
`note_signals(document, headers, html, settings.obey_signals)` in a step does both.

Source: X-Robots-Tag and `<meta name="robots">` as Google's and Bing's documentation of their crawlers have
them; `noai` and `noimageai` by DeviantArt; the TDM Reservation Protocol (W3C community group report, 2024),
sections 5.2 and 5.3.
"""

import html as html_entities
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from datatrove.data import Document

from tasks.steps.shards import NOTES, Fate, removed

SIGNAL_NOTES = [
    pa.field("robots", pa.string()),  # directives in order, separated by commas; `agent:directive` for one
    pa.field("tdm_reservation", pa.bool_()),  # null where the page does not say
    pa.field("tdm_policy", pa.string()),
    pa.field("content_language", pa.string()),  # of the header
    pa.field("html_lang", pa.string()),
]
HEAD_CHARACTERS = 200_000
MOST_DIRECTIVES = 50
MOST_VALUE_CHARACTERS = 500
NO_MARKUP = re.compile(r"<!--.*?(?:-->|\Z)|<(script|style|template|title)\b.*?(?:</\1|\Z)", re.I | re.S)
BODY = re.compile(r"<body\b", re.IGNORECASE)
META = re.compile(
    r"<(?:meta|html)\b((?:[^<>\"']++|\"[^\"<]{0,2000}\"|'[^'<]{0,2000}'){0,200}+)", re.IGNORECASE
)
ATTRIBUTE = re.compile(
    r"([a-z][a-z_:.-]{0,30}+)\s{0,20}+=\s{0,20}+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'<>]++))", re.I
)
DIRECTIVE = re.compile(r"[a-z][a-z0-9_-]{1,40}(?::[a-z0-9.-]{1,20})?")
AGENT = re.compile(r"robots|googlebot(?:-news)?|google-extended|[a-z0-9_-]{1,30}(?:bot|spider|crawler|slurp)")
WITH_VALUES = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
MEANINGS = {"none": ("noindex", "nofollow")}
LANGUAGE = re.compile(r"[A-Za-z]{1,8}(?:[-_][A-Za-z0-9]{1,8}){0,5}")

Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]


def signals(headers: Headers, html_head: str | bytes) -> dict[str, Any]:
    """The values of `SIGNAL_NOTES`; None for what is not said.

    Args:
        headers: HTTP header fields, in a mapping or as pairs; a field may come several times.
        html_head: the page, or its beginning; what comes after `<body>` does not count.
    """
    fields = [(_text(name).strip().lower(), _text(value)) for name, value in _pairs(headers)]
    named, html_lang = _of_head(_text(html_head[:HEAD_CHARACTERS]))
    robots = [
        directive for name, value in fields if name == "x-robots-tag" for directive in _directives(value)
    ]
    robots += [
        directive if name == "robots" else f"{name}:{directive}"
        for name, value in named
        if AGENT.fullmatch(name)
        for directive in _directives(value)
    ]
    said = [
        *fields,
        *named,
    ]  # the header comes first: it holds where they differ, by the protocol's section 5
    return {
        "robots": ",".join(sorted(set(robots))[:MOST_DIRECTIVES]) or None,
        "tdm_reservation": {"1": True, "0": False}.get(_first(said, "tdm-reservation") or ""),
        "tdm_policy": (_first(said, "tdm-policy") or "")[:MOST_VALUE_CHARACTERS] or None,
        "content_language": _languages(_first(fields, "content-language")),
        "html_lang": _languages(html_lang),
    }


def note_signals(
    document: Document,
    headers: Headers,
    html_head: str | bytes,
    obeyed: Sequence[str] = (),
    agents: Sequence[str] = (),
) -> Fate | None:
    """Records a page's signals in its notes; the fate `signal` where one of them is obeyed.

    Args:
        obeyed: directives, and `tdm-reservation`.
        agents: names of crawlers; what is said to one of them counts as if said to all.
    """
    found = signals(headers, html_head)
    document.metadata.setdefault(NOTES, {}).update(found)
    told = set((found["robots"] or "").split(","))
    if found["tdm_reservation"]:
        told.add("tdm-reservation")
    for signal in obeyed:
        for spelling in (signal, *(f"{agent.lower()}:{signal}" for agent in agents)):
            if spelling in told:
                return removed("signal", spelling)
    return None


def _directives(value: str) -> Iterator[str]:
    """The directives of one field; the name of a crawler in front counts for those that follow."""
    agent = ""
    for part in value[: MOST_VALUE_CHARACTERS * 4].lower().split(","):
        name, colon, rest = part.strip().partition(":")
        if colon and name.strip() not in WITH_VALUES and AGENT.fullmatch(name.strip()):
            agent, part = f"{name.strip()}:", rest
        directive = re.sub(r"\s", "", part)
        if directive.startswith("unavailable_after"):
            directive = "unavailable_after"  # its date is of no use to a corpus
        for meaning in MEANINGS.get(directive, (directive,)):
            if DIRECTIVE.fullmatch(meaning):
                yield ("" if agent == "robots:" else agent) + meaning


def _of_head(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """(name, content) of the meta elements, and the language of the page."""
    text = _head(text)
    body = BODY.search(text)
    named, lang = [], None
    for element in META.finditer(text, 0, body.start() if body else len(text)):
        attributes: dict[str, str] = {}
        for found in ATTRIBUTE.finditer(element[1]):  # of an attribute given twice, the first holds
            attributes.setdefault(
                found[1].lower(), html_entities.unescape(found[2] or found[3] or found[4] or "")
            )
        if element[0][1:5].lower() == "html":
            lang = lang or attributes.get("lang") or attributes.get("xml:lang")
        elif "content" in attributes:
            name = attributes.get("name") or attributes.get("http-equiv") or ""
            named.append((name.strip().lower(), attributes["content"]))
    return named, lang


def _head(text: str) -> str:
    """A page up to its body, without comments, scripts and the like, in which nothing is markup."""
    body = BODY.search(text)
    if body is not None:
        head, end = text[: body.start()], 0
        parts = []
        for hidden in NO_MARKUP.finditer(head):
            parts.append(head[end : hidden.start()])
            end = hidden.end()
        if end < len(head):  # else the body may be inside of what is left out
            return " ".join([*parts, head[end:]])
    return NO_MARKUP.sub(" ", text)


def _languages(value: str | None) -> str | None:
    found = LANGUAGE.findall((value or "")[:MOST_VALUE_CHARACTERS])
    return ",".join(found) or None


def _first(fields: Iterable[tuple[str, str]], name: str) -> str | None:
    return next((value.strip() for field, value in fields if field == name), None)


def _pairs(headers: Headers) -> Iterable[tuple[Any, Any]]:
    return headers.items() if hasattr(headers, "items") else headers


def _text(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.encode("utf-8", "replace").decode("utf-8")
