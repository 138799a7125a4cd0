"""PII scrubbing: what identifies a person is replaced by values that identify nobody.

Which placeholder stands for a value depends on the document and the value alone, neither on the order of
documents nor on workers. What was found is recorded by kind and place, never by its value.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from datatrove.data import Document

from pipeline_config.curation import PiiScrubbing
from tasks.steps.pii import addresses, fineweb, numbers
from tasks.steps.pii.addresses import Span
from tasks.steps.shards import COUNTS, NOTES, DecidingStep, Fate

# Source: the addresses of FineWeb (DataTrove's PIIFormatter), of domains reserved by RFC 2606.
EMAILS = ("email@example.com", "firstname.lastname@example.org")
# Few addresses: from a placeholder nobody can tell by trying which address it stands for. Source: RFC 5737
# (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24) and RFC 3849 (2001:db8::/32), reserved for documentation.
IPV4S = ("192.0.2.17", "192.0.2.142", "198.51.100.23", "198.51.100.178", "203.0.113.45", "203.0.113.201")
IPV6S = (
    "2001:db8::17",
    "2001:db8::8e",
    "2001:db8:17::2d",
    "2001:db8:17::c9",
    "2001:db8:8e::9",
    "2001:db8:8e::b2",
)
# No reserved values exist for these. Source of the form: the default of Presidio's anonymizer, <ENTITY_TYPE>.
PHONE, IBAN, CARD, NATIONAL = "<PHONE_NUMBER>", "<IBAN_CODE>", "<CREDIT_CARD>", "<NATIONAL_NUMBER>"
PLACEHOLDERS = {
    "email": EMAILS,
    "ipv4": IPV4S,
    "ipv6": IPV6S,
    "phone": (PHONE,),
    "iban": (IBAN,),
    "payment_card": (CARD,),
}
SPANS = "pii_spans"  # in characters of the text before scrubbing
SPAN = pa.struct([("type", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
NOTE_FIELDS = (pa.field(SPANS, pa.list_(SPAN)),)


@dataclass(frozen=True)
class Scrubbed:
    """A text without what identifies a person, and where that was in the text before."""

    text: str
    spans: tuple[Span, ...]


def scrub(text: str, identity: str, settings: PiiScrubbing) -> Scrubbed:
    """The text of the document `identity` with placeholders instead of what the settings name."""
    spans = tuple(find_spans(text, settings))
    parts, end = [], 0
    for span, placeholder in zip(spans, _placeholders(text, identity, spans, settings), strict=True):
        parts += [text[end : span.start], placeholder]
        end = span.end
    return Scrubbed("".join([*parts, text[end:]]), spans)


def find_spans(text: str, settings: PiiScrubbing) -> list[Span]:
    """What the settings name, in order, without overlaps: of two that overlap the surer kind stays."""
    found: list[Span] = []
    for spans in _found_by_kind(text, settings):
        found = _without_overlaps(found, spans)
    return found


def _found_by_kind(text: str, settings: PiiScrubbing) -> Iterator[Iterable[Span]]:
    """What is found of each kind, the surest kind first."""
    as_fineweb = settings.mode == "fineweb"
    emails: list[Span] = []
    if settings.emails and "@" in text:
        found = fineweb.find_emails(text) if as_fineweb else addresses.find_emails(text)
        emails = [span for span in found if as_fineweb or text[span.start : span.end].lower() not in EMAILS]
    yield emails
    if settings.public_ips and as_fineweb:
        yield fineweb.find_ips(text, emails)
    if settings.ibans:
        yield numbers.find_ibans(text)
    if settings.payment_cards:
        yield numbers.find_payment_cards(text)
    if settings.national_numbers:
        yield numbers.find_national_numbers(text, settings.national_numbers)
    if settings.public_ips and not as_fineweb:
        yield addresses.find_ips(text)
    if settings.phones:
        yield numbers.find_phones(text, settings.phone_regions)


def _without_overlaps(kept: list[Span], more: Iterable[Span]) -> list[Span]:
    merged, end = [], 0
    for span, is_kept in sorted(
        [*((span, True) for span in kept), *((span, False) for span in more)],
        key=lambda found: (found[0].start, not found[1], -found[0].end),
    ):
        while is_kept and merged and span.start < end:
            merged.pop()  # began earlier, but is of a less sure kind
            end = merged[-1].end if merged else 0
        if span.start >= end:
            merged.append(span)
            end = span.end
    return merged


def _placeholders(text: str, identity: str, spans: tuple[Span, ...], settings: PiiScrubbing) -> Iterator[str]:
    in_turn = iter(())
    if settings.mode == "fineweb":
        in_turn = fineweb.placeholders(span for span in spans if span.kind in ("email", "ipv4"))
    for span in spans:
        own = next(in_turn, None) if span.kind in ("email", "ipv4") else None
        yield own or placeholder(span.kind, text[span.start : span.end], identity)


def placeholder(kind: str, value: str, identity: str) -> str:
    """What stands for a value in a document: the same for the same value, however capitalised."""
    choices = PLACEHOLDERS.get(kind, (NATIONAL,))
    if len(choices) == 1:
        return choices[0]
    seed = f"{identity}\0{value.lower()}".encode("utf-8", "surrogatepass")
    return choices[int.from_bytes(hashlib.sha256(seed).digest()[:8], "big") % len(choices)]


def kinds_of(settings: PiiScrubbing) -> tuple[str, ...]:
    """The kinds that the settings look for."""
    kinds = {
        "email": settings.emails,
        "ipv4": settings.public_ips,
        "ipv6": settings.public_ips and settings.mode != "fineweb",
        "iban": settings.ibans,
        "payment_card": settings.payment_cards,
        "phone": settings.phones,
    }
    return (*(kind for kind, wanted in kinds.items() if wanted), *settings.national_numbers)


class ScrubPii(DecidingStep):
    """Replaces personal values in a document's text; sources in `skip` pass unchanged.

    Counts them by kind for the books, and notes their kinds and places in the text before.
    """

    name = "PII"

    def __init__(self, settings: PiiScrubbing, skip: frozenset[str]):
        super().__init__()
        self.settings = settings
        self.skip = skip
        self.nothing = {f"{kind}_replaced": 0 for kind in kinds_of(settings)}

    def decide(self, document: Document) -> Fate | None:
        if document.metadata.get("source") in self.skip:
            return None
        scrubbed = scrub(document.text, document.id, self.settings)
        document.text = scrubbed.text
        counts = Counter(f"{span.kind}_replaced" for span in scrubbed.spans)
        document.metadata[COUNTS] = self.nothing | counts
        document.metadata.setdefault(NOTES, {})[SPANS] = [
            {"type": span.kind, "start": span.start, "end": span.end} for span in scrubbed.spans
        ]
        return None
