"""Quality heuristics with DataTrove's decisions, and what every rule found, for the record."""

import json
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from datatrove.data import Document

from pipeline_config.curation import QualityFiltering, QualityRules
from tasks.steps.classifier import LoadedClassifier
from tasks.steps.quality_rules import (
    Finding,
    Text,
    c4_lines,
    fineweb,
    gopher_quality,
    gopher_repetition,
    rules_of,
)
from tasks.steps.shards import NOTES, DecidingStep, Fate, removed
from tasks.steps.words import OtherWords, RuleWords, words_of_language

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
        fate, text = judge(document.text, rules, tool, notes)
        if fate is None:
            document.text = text
        for classifier in self.classifiers:
            verdict = classifier.judge(text, notes)
            fate = fate or verdict
        return fate


def judge(
    text: str, rules: QualityRules, tool: RuleWords | OtherWords, notes: Notes
) -> tuple[Fate | None, str]:
    """(why a text is removed, the text that C4's rules leave of it); what each rule found goes to the notes.

    The rules after the one that decided are measured, too, as far as they can be.
    """
    fate = None
    left = text
    words = None
    measures: list[Callable[[], Iterator[Finding]]] = []
    whole = Text(text, tool)
    if rules.gopher_repetition:
        measures.append(lambda: gopher_repetition(whole, rules.gopher_repetition))
    if rules.gopher_quality:
        measures.append(lambda: gopher_quality(whole, rules.gopher_quality))
    for measure in measures:
        fate = _measured(measure, notes, fate)
    if rules.c4:
        found = c4_lines(text, tool, rules.c4)
        left, words = found.text, found.words
        notes[DROPPED_LINES] = found.dropped_lines
        for finding in found.findings:
            notes[finding.reason] = finding.value
            if finding.reason == found.reason and fate is None:
                fate = removed(finding.reason, finding)
    if rules.fineweb:
        after = whole if left == text else Text(left, tool)
        fate = _measured(lambda: fineweb(after, rules.fineweb, words), notes, fate)
    return fate, left


def _measured(measure: Callable[[], Iterator[Finding]], notes: Notes, fate: Fate | None) -> Fate | None:
    """The fate, or by the first rule that is broken; the values go to the notes."""
    try:
        for finding in measure():
            notes[finding.reason] = finding.value
            if fate is None and finding.is_broken:
                fate = removed(finding.reason, finding)
    except ZeroDivisionError:  # a share of nothing; DataTrove decides before, or raises
        if fate is None:
            raise
    return fate


def value_fields(settings: QualityFiltering) -> list[pa.Field]:
    """A column for each rule and classifier; its metadata gives the threshold for each language.

    Each threshold is written as `> 0.3`: values beyond it are removed. The language is empty for all languages
    without rules of their own.
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
