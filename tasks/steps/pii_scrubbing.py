"""PII scrubbing: e-mail addresses and public IP addresses, by DataTrove's patterns.

DataTrove hands its placeholders out in turn, over all documents of a worker. Here every document starts
from the first one, so that a text does not depend on the documents before it.
"""

import re
from collections.abc import Callable

from datatrove.data import Document
from datatrove.pipeline.formatters import PIIFormatter

from pipeline_config.curation import PiiScrubbing
from tasks.steps.shards import COUNTS, DecidingStep, Fate, failed

RUN = re.compile(r"\S+")


class RunTooLong(ValueError):
    """A run without white space on which the e-mail pattern would take too long."""


def scrub(text: str, settings: PiiScrubbing) -> tuple[str, int, int]:
    """The text with addresses replaced, and how many e-mail and IP addresses were replaced.

    Raises:
        RunTooLong: a run with an @ is longer than `settings.max_run_characters`.
    """
    emails = ips = 0
    formatter = PIIFormatter()
    if settings.emails and "@" in text:
        text, emails = _scrub_emails(text, formatter, settings.max_run_characters)
    if settings.public_ips:
        text, ips = _replace_counted(text, formatter.ip_replacer.replace)
    return text, emails, ips


def _scrub_emails(text: str, formatter: PIIFormatter, max_run: int) -> tuple[str, int]:
    """An e-mail address holds no white space, so only runs with an @ are searched, one by one."""
    count = 0

    def scrub_run(match: re.Match[str]) -> str:
        nonlocal count
        run = match.group()
        if "@" not in run:
            return run
        if len(run) > max_run:
            raise RunTooLong(f"{len(run)} characters without white space hold an @")
        run, replaced = _replace_counted(run, formatter.emails_replacer.replace)
        count += replaced
        return run

    return RUN.sub(scrub_run, text), count


def _replace_counted(text: str, replace: Callable[[str], str]) -> tuple[str, int]:
    replacer = replace.__self__
    validator, counted = replacer.validator, 0

    def counting(found: str) -> bool:
        nonlocal counted
        valid = validator is None or validator(found)
        counted += valid
        return valid

    replacer.validator = counting
    try:
        return replace(text), counted
    finally:
        replacer.validator = validator


class ScrubPii(DecidingStep):
    """Replaces addresses in a document's text; sources in `skip` pass unchanged."""

    name = "PII"

    def __init__(self, settings: PiiScrubbing, skip: frozenset[str]):
        super().__init__()
        self.settings = settings
        self.skip = skip

    def decide(self, document: Document) -> Fate | None:
        if document.metadata.get("source") in self.skip:
            return None
        try:
            document.text, emails, ips = scrub(document.text, self.settings)
        except RunTooLong as error:
            return failed("run_too_long", error)
        document.metadata[COUNTS] = {"emails_replaced": emails, "ips_replaced": ips}
        return None
