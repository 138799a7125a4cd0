"""Lists of domains, URLs and expressions: what a line means, and which line means a URL.

The kinds of files are UT1's (dsi.ut-capitole.fr/blacklists), a line for each entry, `#` for comments:

    domains      example.com, with its subdomains; an address such as 192.0.2.1 or [2001:db8::1]
    urls         example.com/members, and what is below it, with and without `www.`; letters' case is ignored
    expressions  regular expressions that RE2 knows, found anywhere in the URL; letters' case is ignored
    entries      any other file: each line is a domain or, with a `/` in it, a URL

Domains and URLs lie in a compact set (see `domain_lists`), so that millions cost a worker nothing.
"""

import functools
import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import fsspec
import re2

from pipeline_config.errors import SettingsError, SourceError, error_kind
from tasks.steps.urls.canonical import UrlParts, canonical_host, split_url
from tasks.steps.urls.domain_lists import CompactSet, Members, compact_set

Kind = Literal["domains", "urls", "expressions", "entries"]
Use = Literal["block", "allow"]
HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
ADDRESS = re.compile(r"[0-9.]+|\[.*\]")
BOUNDARY = re.compile(r"[/?&]")
MOST_HOST_CHARACTERS = 253
"""Source: RFC 1035, section 2.3.4."""
SHOWN_CHARACTERS = 100
LINES_AT_A_TIME = 100_000
RULES = 1  # raise it when the meaning of a line changes: the sets made before are then left alone
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class UrlList:
    """A file of entries. `name` is its category; `digest` the SHA-256 of its bytes."""

    name: str
    kind: Kind
    use: Use
    uri: str
    digest: str

    @property
    def facts(self) -> dict[str, str]:
        """What names the list in keys."""
        return {"list": self.name, "kind": self.kind, "use": self.use, "digest": self.digest}


@dataclass(frozen=True)
class Match:
    """The entry that means a URL, and the list that has it."""

    list_name: str
    entry: str


class UrlLists:
    """Finds the first list that means a URL: by its host first, then by its address, then by expression.

    Raises:
        SettingsError: a line cannot be what its list holds; the message names the line.
        SourceError: a list is gone, or has changed since it was named.
        UnreachableError: its storage does not answer.
        StoreError: the data folder cannot be written.
    """

    def __init__(self, lists: Sequence[UrlList]):
        listed = [found for found in lists if found.kind != "expressions"]
        self.names = [found.name for found in listed]
        self.entries: CompactSet | None = None
        if listed:
            content = "\n".join(f"{RULES} {found.kind} {found.digest}" for found in listed)
            name = f"lists-{hashlib.sha256(content.encode()).hexdigest()}"
            self.entries = compact_set(name, lambda: _members(listed))
        expressions = [(found.name, *_expressions(found)) for found in lists if found.kind == "expressions"]
        self.expressions = [found for found in expressions if found[-1]]

    def match(self, url: str, parts: UrlParts | None) -> Match | None:
        """The entry that means a URL; `parts` are the URL's, by `split_url`."""
        if self.entries is not None and parts is not None:
            for candidate in _candidates(parts, self.entries.longest):
                if (number := self.entries.number(candidate)) is not None:
                    return Match(self.names[number], candidate)
        for name, patterns, lines in self.expressions:
            if found := patterns.Match(url.encode("utf-8", "replace").decode("utf-8")):
                return Match(name, lines[min(found)])
        return None


@functools.lru_cache(maxsize=4)
def load_lists(lists: tuple[UrlList, ...]) -> UrlLists:
    """The lists, loaded once per process."""
    return UrlLists(lists)


def domain_entry(text: str) -> str | None:
    """A listed domain or address in its one spelling, or None for what is neither."""
    text = text.removeprefix("*").removeprefix(".")
    if text.count(":") > 1 and text[:1] != "[":
        text = f"[{text}]"
    host = canonical_host(text)
    return host if HOST.fullmatch(host) else None


def url_entry(text: str) -> str | None:
    """A listed URL in the spelling of `_candidates`, or None for what is none."""
    parts = split_url(text if "://" in text else f"http://{text}")
    if parts is None or not HOST.fullmatch(parts.host):
        return None
    host, path = _address(parts)
    return host + (path.rstrip("/") or "/")


def is_address(host: str) -> bool:
    """Whether a host in its one spelling is an IP address, and no name."""
    return ADDRESS.fullmatch(host) is not None


def domains_of(host: str) -> Iterator[str]:
    """A host and the domains that it is in, the longest first, none longer than a name can be."""
    if len(host) <= MOST_HOST_CHARACTERS:
        yield host
    if not is_address(host):
        end = host[-MOST_HOST_CHARACTERS:]
        yield from (end[dot.end() :] for dot in re.finditer(r"\.", end))


def _candidates(parts: UrlParts, longest: int) -> Iterator[str]:
    """The entries that would mean a URL; none is longer than the longest that there is."""
    yield from (name for name in domains_of(parts.host) if len(name) <= longest)
    host, path = _address(parts)
    if len(host) < longest:
        yield f"{host}/"
        whole = path.rstrip("/") if len(path) <= longest else path[: longest + 1]
        for boundary in BOUNDARY.finditer(whole, 1):
            yield host + whole[: boundary.start()]
        if len(whole) > 1 and len(host) + len(whole) <= longest:
            yield host + whole


def _address(parts: UrlParts) -> tuple[str, str]:
    port = f":{parts.port}" if parts.port else ""
    query = f"?{parts.query}" if parts.query else ""
    return parts.host.removeprefix("www.") + port, f"{parts.path}{query}".lower()


def _members(lists: Sequence[UrlList]) -> Iterator[Members]:
    for number, found in enumerate(lists):
        some: list[bytes] = []
        for line, text in _lines(found):
            is_url = found.kind == "urls" or (found.kind == "entries" and "/" in text)
            entry = url_entry(text) if is_url else domain_entry(text)
            if entry is None:
                what = "URL" if is_url else "domain or address"
                raise _wrong(found, line, text, f"is no {what}")
            some.append(entry.encode())
            if len(some) >= LINES_AT_A_TIME:
                yield number, some
                some = []
        yield number, some


def _expressions(found: UrlList) -> tuple[Any, list[str]]:
    options = re2.Options()
    options.case_sensitive, options.log_errors = False, False
    patterns, lines = re2.Set.SearchSet(options), []
    for line, text in _lines(found):
        try:
            patterns.Add(text)
        except re2.error:
            raise _wrong(found, line, text, "is no regular expression that RE2 knows") from None
        lines.append(text)
    patterns.Compile()
    return patterns, lines


def _lines(found: UrlList) -> Iterator[tuple[int, str]]:
    """Number and text of each entry."""
    for number, line in enumerate(_content(found).splitlines(), start=1):
        try:
            text = line.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise _wrong(found, number, repr(line), "is not UTF-8") from None
        if text and not text.startswith("#"):
            yield number, text


def _content(found: UrlList) -> bytes:
    data = read_list(found.uri)
    if hashlib.sha256(data).hexdigest() != found.digest:
        raise SourceError(f"the list {found.uri} has changed while it was in use: start again")
    if data[:2] != GZIP_MAGIC:
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, ValueError) as error:
        raise SourceError(f"the list {found.uri} is damaged: {error}. Fetch it again") from None


def read_list(uri: str) -> bytes:
    """The bytes of a list, from any fsspec URL.

    Raises:
        SourceError: it cannot be read.
        UnreachableError: its storage does not answer.
    """
    try:
        with fsspec.open(uri, "rb") as file:
            return file.read()
    except Exception as error:
        raise error_kind(error)(f"cannot read the list {uri}: {error!r}") from None


def _wrong(found: UrlList, line: int, text: str, why: str) -> SettingsError:
    shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    return SettingsError(f"the list {found.uri}, line {line}: {shown!r} {why}. Mend or remove the line")
