"""Takedown: documents that must go, by URL, URL prefix, domain or id, before anything of them is decoded.

A list is a YAML file:

    reason: why they must go
    date: 2026-11-30
    entries:
      - domain: example.com
      - url: https://example.org/page.html
      - url_prefix: https://example.org/members/
      - id: urn:uuid:5f2f0d9c-9e2f-4c1b-8a35-3a3d8f1e2b11
"""

import datetime
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml
from datatrove.data import Document, DocumentsPipeline
from yaml.composer import ComposerError

from pipeline_config.errors import AuditError, SettingsError
from tasks.steps.selection import KINDS, Selector, domain_names
from tasks.steps.shards import FATE, DecidingStep, Fate, removed

REASON = "takedown"
SHOWN_CHARACTERS = 200
SURROGATE = re.compile("[\ud800-\udfff]")
HOST = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#\\]*@)?([^/?#@:\\]*)")


@dataclass(frozen=True)
class TakedownList:
    """What must go, since when and why. `digest` is the SHA-256 of the file."""

    digest: str
    reason: str
    date: str
    selectors: tuple[Selector, ...]

    @property
    def facts(self) -> dict[str, str]:
        """What names the list in keys, cards and certificates."""
        return {"takedown": self.digest, "date": self.date, "reason": self.reason}

    def match(self, url: str | None, identity: str) -> Selector | None:
        """The entry that means a record, or None.

        The time does not grow with the number of domains, URLs and ids, but for hosts of other scripts.
        """
        found = self._exact.get(("id", identity))
        if found is None and url:
            found = self._exact.get(("url", url)) or self._domain_of(url)
            found = found or next((s for s in self._prefixes if url.startswith(s.forms)), None)
        return found

    def _domain_of(self, url: str) -> Selector | None:
        found = HOST.match(url)
        host = found.group(1) if found else ""
        if not host.isascii():  # rare, and which letters are the same there is for the selectors to say
            return next((s for s in self.selectors if s.kind == "domain" and s.matches(url, "")), None)
        labels = host.lower().removesuffix(".").split(".")
        names = (".".join(labels[place:]) for place in range(len(labels)))
        return next((self._exact[key] for name in names if (key := ("domain", name)) in self._exact), None)

    @cached_property
    def _exact(self) -> dict[tuple[str, str], Selector]:
        exact: dict[tuple[str, str], Selector] = {}
        for selector in self.selectors:
            if selector.kind != "url_prefix":
                forms = domain_names(selector.value) if selector.kind == "domain" else selector.forms
                exact |= dict.fromkeys(((selector.kind, form) for form in forms), selector)
        return exact

    @cached_property
    def _prefixes(self) -> list[Selector]:
        return [selector for selector in self.selectors if selector.kind == "url_prefix"]


def parse_takedown_list(data: bytes, where: str) -> TakedownList:
    """A list from the bytes of its file.

    Raises:
        SettingsError: it is no such list; the message names the entry.
    """
    try:
        values = yaml.load(data.decode("utf-8"), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-13-01
        raise SettingsError(f"takedown list {where} is not valid YAML: {error}") from None
    if not isinstance(values, dict) or values.keys() != {"reason", "date", "entries"}:
        raise SettingsError(f"takedown list {where} must hold exactly `reason`, `date` and `entries`")
    reason, date, entries = values["reason"], values["date"], values["entries"]
    if not isinstance(reason, str) or not reason.strip():
        raise SettingsError(f"takedown list {where}: reason: {_shown(reason)} must be a text")
    if not isinstance(entries, list) or not entries:
        raise SettingsError(f"takedown list {where}: entries: must be a list with at least one entry")
    selectors = tuple(
        _selector(entry, f"takedown list {where}: entries.{n}") for n, entry in enumerate(entries)
    )
    return TakedownList(hashlib.sha256(data).hexdigest(), reason, _date(date, where), selectors)


class _Loader(yaml.SafeLoader):
    """YAML that means what it looks like: without anchors, names given twice, and lone surrogates.

    An alias can make a text of a few lines endlessly large; of a name given twice YAML drops the first value.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if event.anchor is not None:
            raise ComposerError(None, None, f"found the anchor or alias {event.anchor!r}", event.start_mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        names: set[str] = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode):
                if name.value in names:
                    raise ComposerError(None, None, f"found the name {name.value!r} twice", name.start_mark)
                names.add(name.value)
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if SURROGATE.search(node.value):
            raise ComposerError(None, None, "found a lone surrogate", node.start_mark)
        return node


def _shown(value: Any) -> str:
    return repr(value)[:SHOWN_CHARACTERS]


def _date(value: Any, where: str) -> str:
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise SettingsError(
            f"takedown list {where}: date: {_shown(value)} must be a date, as 2026-11-30"
        ) from None


def _selector(entry: Any, where: str) -> Selector:
    if not isinstance(entry, dict) or len(entry) != 1 or not isinstance(next(iter(entry.values())), str):
        raise SettingsError(f"{where}: {_shown(entry)} must be one of {', '.join(KINDS)} with a text")
    ((kind, value),) = entry.items()
    try:
        return Selector(kind, value)
    except AuditError as error:
        raise SettingsError(f"{where}: {error}") from None


class TakeDown(DecidingStep):
    """Removes the records that the lists mean; nothing of their text is kept for the ledger."""

    name = "takedown"

    def __init__(self, lists: Sequence[TakedownList]):
        super().__init__()
        self.lists = list(lists)

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Decides of records that have failed already, too: whatever becomes of them, they must go."""
        for document in data:
            fate = self._decide_safely(document)
            if fate is not None:
                document.metadata[FATE] = fate
            yield document

    def decide(self, document: Document) -> Fate | None:
        for found in self.lists:
            entry = found.match(document.metadata.get("url"), document.id)
            if entry is not None:
                document.text = ""
                return removed(
                    REASON, f"{entry.kind} in list {found.digest[:12]} of {found.date}: {found.reason}"
                )
        return None
