"""E-mail and IPv4 addresses as FineWeb finds and replaces them: DataTrove's patterns, in linear time.

DataTrove hands its replacements out in turn, over all documents of a worker. Here every document starts from
the first one, so that a text does not depend on the documents before it: the result is that of a new
`PIIFormatter` for every document. Source: Penedo et al. 2024, arXiv:2406.17557, and DataTrove 0.10.1.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from datatrove.pipeline.formatters import PIIFormatter

from tasks.steps.pii.addresses import Span, dotted_runs, start_of_run

SIGNS = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~-"
ATOM = f"[{SIGNS}]+"
OCTET = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
DOMAIN = rf"(?:(?:{LABEL}\.)+{LABEL}|\[(?:{OCTET}\.){{3}}(?:{OCTET[3:-1]}|[A-Za-z0-9-]*[A-Za-z0-9]:)])"
EMAIL = rf"\b{ATOM}(?:\.{ATOM})*@{DOMAIN}"  # DataTrove's pattern, which a test holds it to

AFTER_AT = re.compile(DOMAIN)
LOCAL_BACKWARDS = re.compile(f"[.{SIGNS}]*")
BOUNDARY = re.compile(r"\b")
FORMATTER = PIIFormatter()
IP_PATTERN = FORMATTER.ip_replacer.regex
is_public_ip = FORMATTER.ip_replacer.validator
EMAIL_REPLACEMENTS = FORMATTER.emails_replacer.replacements
IP_REPLACEMENTS = FORMATTER.ip_replacer.replacements


def find_emails(text: str) -> Iterator[Span]:
    """What DataTrove's e-mail pattern finds.

    The pattern itself takes quadratic time, since it starts at every word. But what precedes the @ of a match
    is the longest dotted name before it, from its first word boundary on, and what follows does not depend
    on that; so each @ is looked at once, in both directions.
    """
    end, at = 0, text.find("@")
    while at >= 0:
        domain = AFTER_AT.match(text, at + 1)
        if domain:
            start = _local_start(text, end, at)
            if start < at:
                end = domain.end()
                yield Span("email", start, end)
        end = max(end, at + 1)
        at = text.find("@", end)


def _local_start(text: str, low: int, at: int) -> int:
    """The first word boundary from which dotted names reach the @; `at` if there is none."""
    if text[at - 1 : at] == ".":
        return at
    start = start_of_run(text, low, at, LOCAL_BACKWARDS)
    gap = text.rfind("..", start, at)
    start = gap + 2 if gap >= 0 else start
    while boundary := BOUNDARY.search(text, start, at):
        start = boundary.start()
        if start == at or text[start] != ".":
            return start
        start += 1
    return at


def find_ips(text: str, emails: Sequence[Span]) -> Iterator[Span]:
    """What DataTrove's pattern for IPv4 addresses finds outside e-mail addresses and takes for public."""
    low, remaining = 0, iter([*emails, Span("", len(text), len(text))])
    email = next(remaining)
    for start, end in dotted_runs(text):
        low = max(low, start)
        while low < end:
            for match in IP_PATTERN.finditer(text, low, min(end, email.start)):
                if is_public_ip(match.group()):
                    yield Span("ipv4", *match.span())
            if email.start >= end:
                break
            low, email = max(low, email.end), next(remaining)


def placeholders(spans: Iterable[Span]) -> Iterator[str]:
    """DataTrove's replacements for the spans, each kind in turn from the first one on."""
    turns = {"email": itertools.cycle(EMAIL_REPLACEMENTS), "ipv4": itertools.cycle(IP_REPLACEMENTS)}
    return (next(turns[span.kind]) for span in spans)
