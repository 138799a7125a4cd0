"""URL filtering: decides by record type, payload type and URL whether a record is worth decoding."""

import functools

from datatrove.data import Document
from datatrove.pipeline.filters import URLFilter
from tldextract import TLDExtract

from pipeline_config.curation import UrlFiltering
from tasks.steps.shards import DecidingStep, Fate, removed


class FilterUrls(DecidingStep):
    """Decides by record type, payload type and DataTrove's URL filter."""

    name = "URL filter"

    def __init__(self, settings: UrlFiltering):
        super().__init__()
        self.settings = settings

    def decide(self, document: Document) -> Fate | None:
        record_type = document.metadata.get("record_type")
        if record_type == "revisit":
            return removed("revisit", "the page is unchanged since an earlier record")
        payload_type = document.metadata.get("payload_type")
        if payload_type and payload_type not in self.settings.payload_types:
            return removed("payload_type", payload_type)
        url = document.metadata.get("url")
        if not url:
            return removed("no_url")
        verdict = url_filter(self.settings).filter(document)
        if verdict is True:
            return None
        return removed(verdict[1], url)


@functools.lru_cache(maxsize=1)
def url_filter(settings: UrlFiltering) -> URLFilter:
    """DataTrove's filter, loaded once per process, and kept off the network."""
    block = URLFilter(
        soft_word_threshold=settings.soft_word_threshold,
        extra_domains=settings.extra_domains or None,
        use_integrated_lists=settings.use_integrated_lists,
    )
    block.tldextractor = TLDExtract(suffix_list_urls=(), cache_dir=None)
    return block
