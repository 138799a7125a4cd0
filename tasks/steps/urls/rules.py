"""DataTrove's URL rules: its decisions and reasons, at a fraction of its time and memory.

Source of rules and lists: `datatrove.pipeline.filters.URLFilter` of DataTrove 0.10.1, whose lists are the
University of Toulouse's (UT1). They come in this order, and the first that holds decides:

    domain               the registered domain is listed
    subdomain            the whole host name is listed
    url                  the whole URL is listed
    hard_blacklisted     a word of the URL is banned
    soft_blacklisted     `soft_word_threshold` different words of the URL are soft-banned
    blacklisted_subword  the URL's letters and digits hold a banned string
"""

import functools
import hashlib
import importlib.resources
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import ahocorasick
from tldextract import TLDExtract
from tldextract.remote import lenient_netloc

from pipeline_config.errors import StoreError
from tasks.steps.urls.domain_lists import CompactSet, Members, compact_set

LISTS = "url_filterblacklistsv0_3_0.tar.gz"
LINES_BYTES = 1 << 20  # that are read at a time
PLAIN_HOST = re.compile(r"https?://([a-z0-9.-]*[a-z0-9-])(?=[/?#]|\Z)")
OTHER_DOTS = re.compile("[\u3002\uff0e\uff61]")
ALPHANUMERIC = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
OTHERS = bytes(code for code in range(256) if code not in ALPHANUMERIC)
TO_SPACES = bytes(code if code in ALPHANUMERIC else 0x20 for code in range(256))
TO_LOWER = bytes(range(256)).lower()

Verdict = tuple[str, str]  # the reason, and what decided


class UrlRules:
    """Decides about URLs as DataTrove's filter does."""

    def __init__(self, soft_word_threshold: int):
        self.soft_word_threshold = soft_word_threshold
        self.domains, self.urls = integrated_lists()
        self.banned = words_of("banned_words.txt")
        self.soft_banned = words_of("soft_banned_words.txt")
        self.words = frozenset(word.encode("ascii") for word in self.banned | self.soft_banned)
        self.subwords = _automaton(words_of("banned_subwords.txt"))

    def verdict(self, url: str) -> Verdict | None:
        """The first rule that holds, and what of the URL decided; None for a URL to keep."""
        return self._by_host(url) or self._by_words(url)

    def _by_host(self, url: str) -> Verdict | None:
        plain = PLAIN_HOST.match(url)
        host = plain[1] if plain else OTHER_DOTS.sub(".", lenient_netloc(url))
        if self._may_be_listed(host):
            found = domain_parser()(url)
            for reason, name in (("domain", found.top_domain_under_public_suffix), ("subdomain", found.fqdn)):
                if self.domains.number(name) is not None:
                    return reason, name
        if len(url) <= self.urls.longest and self.urls.number(url) is not None:
            return "url", url
        return None

    def _may_be_listed(self, host: str) -> bool:
        """Whether the host, or a domain that it is in, is listed.

        What the suffix list makes of a host, which takes longer to find, is one of these, with a dot in it.
        """
        number, longest = self.domains.number, self.domains.longest
        dot = host.rfind(".")
        while dot > 0:
            dot = host.rfind(".", 0, dot)
            name = host[dot + 1 :]
            if len(name) > longest:
                return False
            if number(name) is not None:
                return True
        return False

    def _by_words(self, url: str) -> Verdict | None:
        data = url.encode("utf-8", "surrogatepass")
        words = data.translate(TO_SPACES).split()
        if not self.words.isdisjoint(words) and (verdict := self._by_whole_words(words)):
            return verdict
        letters = data.translate(TO_LOWER, OTHERS).decode("ascii")
        if (match := next(self.subwords.iter(letters), None)) is not None:
            return "blacklisted_subword", match[1]
        return None

    def _by_whole_words(self, words: list[bytes]) -> Verdict | None:
        found = {word.decode("ascii") for word in words}
        if banned := self.banned & found:
            return "hard_blacklisted", min(banned)
        soft_banned = self.soft_banned & found
        if len(soft_banned) >= self.soft_word_threshold:
            return "soft_blacklisted", " ".join(sorted(soft_banned))
        return None


@functools.lru_cache(maxsize=1)
def url_rules(soft_word_threshold: int) -> UrlRules:
    """The rules, loaded once per process."""
    return UrlRules(soft_word_threshold)


@functools.lru_cache(maxsize=1)
def domain_parser() -> TLDExtract:
    """What finds the registered domain of a URL, by the suffix list that it ships: it asks no network."""
    return TLDExtract(suffix_list_urls=(), cache_dir=None)


def integrated_lists() -> tuple[CompactSet, CompactSet]:
    """DataTrove's listed domains and URLs.

    Raises:
        StoreError: they are not there in compact form yet, and the data folder cannot be written.
    """
    archive = assets() / LISTS
    with open(archive, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return (
        compact_set(f"datatrove-domains-{digest}", lambda: _listed(archive, "domains")),
        compact_set(f"datatrove-urls-{digest}", lambda: _listed(archive, "urls")),
    )


def words_of(name: str) -> frozenset[str]:
    """One of DataTrove's lists of words, in lower case and without all but letters and digits."""
    lines = (assets() / name).read_text("utf-8").splitlines()
    return frozenset(re.sub(r"[^a-zA-Z0-9]+", "", line).lower() for line in lines if line[:1] != "#")


def assets() -> Path:
    """The folder of the lists that DataTrove ships."""
    return Path(str(importlib.resources.files("datatrove"))) / "assets"


def _listed(archive: Path, name: str) -> Iterator[Members]:
    with tarfile.open(archive, "r:gz") as tar:
        file = tar.extractfile(name)
        if file is None:
            raise StoreError(f"{archive} holds no file {name}: install datatrove again")
        while lines := file.readlines(LINES_BYTES):
            yield 0, [line.strip() for line in lines if not line.startswith(b"#")]


def _automaton(words: Iterable[str]) -> ahocorasick.Automaton:
    automaton = ahocorasick.Automaton()
    for word in sorted(words):
        automaton.add_word(word, word)
    automaton.make_automaton()
    return automaton
