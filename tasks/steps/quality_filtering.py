"""Quality heuristics with DataTrove's decisions, and what every rule found, for the record."""

import json
from collections.abc import Iterable, Sequence

import pyarrow as pa
from datatrove.data import Document

from pipeline_config.curation import QualityFiltering, QualityRules
from tasks.steps.classifier import LoadedClassifier
from tasks.steps.quality.rules import (
    EMPTY,
    Finding,
    Text,
    c4_lines,
    fineweb,
    gopher_quality,
    gopher_repetition,
    rules_of,
)
from tasks.steps.quality.words import OtherWords, RuleWords, words_of_language
from tasks.steps.shards import NOTES, DecidingStep, Fate, removed

DEFAULT_LANGUAGE = "en"
DROPPED_LINES = "c4_dropped_lines"
Notes = dict[str, float | None]


class FilterQuality(DecidingStep):
    """Removes a document by the first rule that it breaks; C4's rules also drop lines.

    Args:
        digests: what the content of the classifiers' files must be, where that is known.
    """

    name = "quality"

    def __init__(self, settings: QualityFiltering, digests: Sequence[str] = ()):
        super().__init__()
        self.settings = settings
        expected = list(digests) or [""] * len(settings.classifiers)
        self.classifiers = [
            LoadedClassifier(one, digest) for one, digest in zip(settings.classifiers, expected, strict=True)
        ]
        self.by_language = {rules.language: rules for rules in settings.languages}

    def decide(self, document: Document) -> Fate | None:
        notes: Notes = document.metadata.setdefault(NOTES, {})
        rules = self.by_language.get(document.metadata.get("language", ""), self.settings)
        language = getattr(rules, "language", DEFAULT_LANGUAGE)
        tool = words_of_language(language)
        fate, text = judge(document, rules, tool, notes)
        for classifier in self.classifiers:
            verdict = classifier.judge(text, notes)
            fate = fate or verdict
        return fate


def judge(
    document: Document, rules: QualityRules, tool: RuleWords | OtherWords, notes: Notes
) -> tuple[Fate | None, str]:
    """(why a document is removed, the text that C4's rules leave of it); each rule's value goes to the notes.

    The document gets that text unless C4's rules or those before them remove it. The rules after the one that
    decided are measured, too, as far as they can be.
    """
    fate, words = None, None
    whole = after = Text(document.text, tool)
    if rules.gopher_repetition:
        fate = _measured(gopher_repetition(whole, rules.gopher_repetition), notes, fate)
    if rules.gopher_quality:
        fate = _measured(gopher_quality(whole, rules.gopher_quality), notes, fate)
    if rules.c4:
        found = c4_lines(whole.text, tool, rules.c4)
        words = found.words
        notes[DROPPED_LINES] = found.dropped_lines
        for finding in found.findings:
            notes[finding.reason] = finding.value
            if finding.reason == found.reason and fate is None:
                fate = removed(finding.reason, finding)
        after = Text(found.text, tool)
        if fate is None:
            document.text = found.text
    if rules.fineweb:
        fate = _measured(fineweb(after, rules.fineweb, words), notes, fate)
    return fate, after.text


def _measured(findings: Iterable[Finding], notes: Notes, fate: Fate | None) -> Fate | None:
    """The fate, or that of the first rule that is broken; the values go to the notes."""
    try:
        for finding in findings:
            if finding is EMPTY:
                return fate or removed(finding.reason)
            notes[finding.reason] = finding.value
            if fate is None and finding.is_broken:
                fate = removed(finding.reason, finding)
    except ZeroDivisionError:  # a share of nothing; DataTrove decides before, or raises
        if fate is None:
            raise
    return fate


def value_fields(settings: QualityFiltering) -> list[pa.Field]:
    """A column for each rule and classifier; its metadata gives the threshold for each language.

    Each threshold is written as `> 0.3`: values beyond it are removed. The language is empty for all
    languages without rules of their own.
    """
    thresholds: dict[str, dict[str, str]] = {}
    for language, rules in [("", settings), *((one.language, one) for one in settings.languages)]:
        for reason, (side, threshold) in rules_of(rules).items():
            thresholds.setdefault(reason, {})[language] = f"{side} {threshold:g}"
    fields = [
        pa.field(name, pa.float64(), metadata={"removes": json.dumps(t)}) for name, t in thresholds.items()
    ]
    if any(rules.c4 for rules in (settings, *settings.languages)):
        fields.append(pa.field(DROPPED_LINES, pa.int64()))
    return fields + [pa.field(f"score_{one.name}", pa.float64()) for one in settings.classifiers]


def value_column(reason: str) -> str:
    """The column of `annotations/` that holds what a reason's rule compared."""
    return "score_" + reason.removeprefix("classifier_") if reason.startswith("classifier_") else reason
