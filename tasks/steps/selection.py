"""Which records a URL, a URL prefix, a domain or a document id means: in Python and as a SQL condition."""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

from pipeline_config.errors import AuditError

Kind = Literal["url", "url_prefix", "domain", "id"]
KINDS: tuple[Kind, ...] = ("url", "url_prefix", "domain", "id")
DOMAIN = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)
HOSTLIKE = re.compile(r"([a-z0-9_-]+\.)+[a-z][a-z0-9-]+", re.IGNORECASE)
SHOWN_CHARACTERS = 200  # of a value in an error
DOMAIN_CHARACTERS = 253
"""Longest name of a host. Source: RFC 1035, section 2.3.4."""


@dataclass(frozen=True)
class Selector:
    """A URL (http and https alike), all URLs that begin so, a domain with its subdomains, or an id."""

    kind: Kind
    value: str

    def __post_init__(self) -> None:
        value, shown = self.value, repr(self.value[:SHOWN_CHARACTERS])
        if self.kind not in KINDS:
            raise AuditError(f"{self.kind!r} selects nothing: it must be one of {', '.join(KINDS)}")
        if not value.strip():
            raise AuditError(f"an empty {self.kind} would select everything: give a value")
        if not _is_unicode(value):
            raise AuditError(f"the {self.kind} {shown} is not Unicode: no record can have it")
        if self.kind == "domain" and not is_domain(value):
            raise AuditError(f"{shown} is not a domain: give a host name such as example.com, without a path")
        if self.kind == "url_prefix" and not re.match(r"[a-z][a-z0-9+.-]*://[^/]", value, re.IGNORECASE):
            raise AuditError(f"{shown} is not the beginning of a URL: it needs a scheme and a host")

    @classmethod
    def of(cls, text: str) -> Self:
        """What a text means: a URL; with * at the end a prefix; a host name is a domain; else an id."""
        if text.endswith("*"):
            return cls("url_prefix", text.removesuffix("*"))
        if "://" in text:
            return cls("url", text)
        return cls("domain" if HOSTLIKE.fullmatch(ascii_domain(text)) else "id", text)

    @property
    def forms(self) -> tuple[str, ...]:
        """The spellings of a URL that are taken for the same."""
        scheme, separator, rest = self.value.partition("://")
        if scheme.lower() not in ("http", "https") or not separator:
            return (self.value,)
        return tuple(dict.fromkeys((self.value, f"http://{rest}", f"https://{rest}")))

    @property
    def pattern(self) -> str:
        """For a domain, the pattern of its URLs with a `/` behind them, for Python's `re` and for RE2.

        The `/` stands for the end, which the two engines do not see at the same place.
        """
        names = "|".join(map(re.escape, domain_names(self.value)))
        host = rf"([^/?#\\]*@)?([^/?#@:\\]*\.)?(?i:{names})\.?(:[^/?#@\\]*)?"
        return rf"^[A-Za-z][A-Za-z0-9+.-]*://{host}[/?#\\]"

    def matches(self, url: str | None, identity: str) -> bool:
        """Whether a record with this URL and id is meant."""
        if self.kind == "id":
            return identity == self.value
        if not url:
            return False
        if self.kind == "url":
            return url in self.forms
        if self.kind == "url_prefix":
            return url.startswith(self.forms)
        return re.search(self.pattern, f"{url}/") is not None

    def condition(self) -> tuple[str, list[Any]]:
        """The same as a SQL condition on `url` and `id`, with its parameters."""
        if self.kind == "id":
            return "id = ?", [self.value]
        if self.kind == "url":
            return f"url IN ({', '.join('?' * len(self.forms))})", list(self.forms)
        if self.kind == "url_prefix":
            return "(" + " OR ".join(["starts_with(url, ?)"] * len(self.forms)) + ")", list(self.forms)
        return "regexp_matches(url || '/', ?)", [self.pattern]


def ascii_domain(domain: str) -> str:
    """A domain as crawlers write it: lower case, other scripts in Punycode, no dot at the ends."""
    domain = domain.strip().strip(".").lower()
    if domain.isascii():
        return domain
    try:
        return domain.encode("idna").decode()
    except UnicodeError:
        return domain


def domain_names(domain: str) -> list[str]:
    """The spellings of a domain in URLs: as given in lower case, in Punycode, and in its own script."""
    name = ascii_domain(domain)
    spellings = [name, domain.strip().strip(".").lower()]
    with contextlib.suppress(UnicodeError):
        spellings.append(name.encode("ascii").decode("idna").lower())
    return list(dict.fromkeys(spellings))


def is_domain(value: str) -> bool:
    """Whether a value is the name of a host, in whatever script."""
    name = ascii_domain(value)
    return len(name) <= DOMAIN_CHARACTERS and DOMAIN.fullmatch(name) is not None


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def any_of(selectors: Iterable[Selector]) -> tuple[str, list[Any]]:
    """A SQL condition that one of the selectors holds; ids and URLs are looked up, not tried one by one."""
    conditions, parameters = ["false"], []
    listed: dict[str, list[str]] = {"id": [], "url": []}
    for selector in selectors:
        if selector.kind in ("id", "url"):
            listed[selector.kind] += selector.forms if selector.kind == "url" else (selector.value,)
        else:
            condition, values = selector.condition()
            conditions.append(condition)
            parameters += values
    for column, values in listed.items():
        if values:
            conditions.append(f"{column} IN (SELECT unnest(?))")
            parameters.append(values)
    return f"({' OR '.join(conditions)})", parameters
