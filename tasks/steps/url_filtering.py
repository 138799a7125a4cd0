"""URL filtering: decides by record type, payload type and URL whether a record is worth decoding."""

import functools
from collections.abc import Sequence

import pyarrow as pa
from datatrove.data import Document

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SettingsError
from tasks.steps.shards import NOTES, DecidingStep, Fate, removed
from tasks.steps.urls.canonical import canonical_url, split_url
from tasks.steps.urls.lists import UrlList, domain_entry, domains_of, load_lists
from tasks.steps.urls.rules import domain_parser, url_rules

URL_NOTES = (pa.field("canonical_url", pa.string()),)


class FilterUrls(DecidingStep):
    """Decides by record type, HTTP status, payload type, and the rules and lists for URLs.

    What an allow list means passes all rules for URLs. Notes the URL's one spelling.
    """

    name = "URL filter"

    def __init__(self, settings: UrlFiltering, lists: Sequence[UrlList] = ()):
        super().__init__()
        self.settings = settings
        self.allowed = tuple(found for found in lists if found.use == "allow")
        self.blocked = tuple(found for found in lists if found.use == "block")

    def prepare(self) -> None:
        """Makes the compact lists where they are not there yet.

        Raises:
            SettingsError: a list holds what it cannot.
        """
        listed_domains(self.settings.extra_domains)
        for lists in (self.allowed, self.blocked):
            load_lists(lists)
        if self.settings.use_integrated_lists:
            url_rules(self.settings.soft_word_threshold)

    def decide(self, document: Document) -> Fate | None:
        found, notes = document.metadata, document.metadata.setdefault(NOTES, {})
        url, status = found.get("url"), notes.get("http_status")
        notes["canonical_url"] = canonical_url(url) if url else None
        if found.get("record_type") == "revisit":
            return removed("revisit", "the page is unchanged since an earlier record")
        if status is not None and self.settings.http_statuses and status not in self.settings.http_statuses:
            return removed("http_status", status)
        payload_type = found.get("payload_type")
        if payload_type and payload_type not in self.settings.payload_types:
            return removed("payload_type", payload_type)
        if not url:
            return removed("no_url")
        return self._decide_by_url(url)

    def _decide_by_url(self, url: str) -> Fate | None:
        listed = self.allowed or self.blocked or self.settings.extra_domains
        parts = split_url(url) if listed else None
        if self.allowed and load_lists(self.allowed).match(url, parts):
            return None
        if parts and (fate := self._extra_domain(parts.host)):
            return fate
        if self.blocked and (match := load_lists(self.blocked).match(url, parts)):
            return removed(f"blocklist:{match.list_name}", match.entry)
        if not self.settings.use_integrated_lists:
            return None
        verdict = url_rules(self.settings.soft_word_threshold).verdict(url)
        return removed(*verdict) if verdict else None

    def _extra_domain(self, host: str) -> Fate | None:
        domains = listed_domains(self.settings.extra_domains)
        entry = next((name for name in domains_of(host) if name in domains), None)
        if entry is None:
            return None
        registered = domain_parser()(f"http://{entry}").top_domain_under_public_suffix
        return removed("domain" if registered in ("", entry) else "subdomain", entry)


@functools.lru_cache(maxsize=4)
def listed_domains(domains: tuple[str, ...]) -> frozenset[str]:
    """The domains of a setting, each in its one spelling.

    Raises:
        SettingsError: one of them is no domain and no address.
    """
    for domain in domains:
        if domain_entry(domain) is None:
            raise SettingsError(
                f"url_filtering.extra_domains: {domain!r} is no domain or address: give a host name such as "
                "example.com, without a path"
            )
    return frozenset(domain_entry(domain) or "" for domain in domains)
