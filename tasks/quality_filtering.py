"""Quality heuristics: Gopher repetition, Gopher quality, C4, FineWeb; scores of classifiers."""

import hashlib
import importlib.metadata
from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline_config.curation import QualityFiltering
from pipeline_config.settings import Source
from tasks.run import Run
from tasks.stage import Report, Stage, Work
from tasks.steps.classifier import read_model
from tasks.steps.quality.words import packages_of_language, words_of_language
from tasks.steps.quality_filtering import DEFAULT_LANGUAGE, FilterQuality, value_fields
from tasks.steps.shards import ReadShard, WriteShard
from tasks.store import StageOutput

STAGE = Stage(
    "quality_filtering",
    "Filter quality",
    version=3,
    libraries=("datatrove", "fasttext-numpy2-wheel", "pyarrow", "spacy"),
)


def filter_quality(run: Run, source: Source, documents: StageOutput) -> StageOutput:
    """The documents that break none of the rules; every rule's value for every document.

    Raises:
        SettingsError: the words of a language cannot be told.
        SourceError: a classifier cannot be read.
    """
    settings = run.settings.quality_filtering
    digests = [
        hashlib.sha256(run.patiently(read_model, one.path)).hexdigest() for one in settings.classifiers
    ]
    return run.stage(
        STAGE,
        partial(_build, paths=[one.path for one in settings.classifiers], digests=digests),
        without_paths(settings),
        label=source.name,
        inputs=[documents],
        content=[{"classifiers": digests}, tokenizers(settings)] if digests or settings.languages else [],
    )


def without_paths(settings: QualityFiltering) -> QualityFiltering:
    """The settings as they are part of the key: of a classifier's file only the content counts."""
    hidden = tuple(one.model_copy(update={"path": "-"}) for one in settings.classifiers)
    return settings.model_copy(update={"classifiers": hidden})


def tokenizers(settings: QualityFiltering) -> dict[str, Any]:
    """What tells the words of each language of its own, with the version of its package."""
    found = {}
    for language in (DEFAULT_LANGUAGE, *(rules.language for rules in settings.languages)):
        words_of_language(language)
        found[language] = {name: importlib.metadata.version(name) for name in packages_of_language(language)}
    return found


def _build(work: Work, paths: Sequence[str] = (), digests: Sequence[str] = ()) -> Report:
    shards = work.shards()
    settings: QualityFiltering = work.settings
    classifiers = tuple(
        one.model_copy(update={"path": path}) for one, path in zip(settings.classifiers, paths, strict=True)
    )
    settings = settings.model_copy(update={"classifiers": classifiers})
    writer = WriteShard(str(work.folder), notes=value_fields(settings))
    return work.run_shards([ReadShard(shards), FilterQuality(settings, digests), writer], tasks=len(shards))
