"""fastText classifiers of documents: training from two labelled sets, and scores.

    python -m tasks.steps.classifier CONFIG.json

trains in a process of its own, on one thread with a fixed seed and memory that starts as zeros, so that the
same texts give the same model.

Source: Joulin et al. 2016, arXiv:1607.01759; for quality filtering DataComp-LM (Li et al. 2024,
arXiv:2406.11794).
"""

import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fasttext
import fsspec
from fasttext.FastText import _FastText

from pipeline_config.classifiers import ClassifierTraining
from pipeline_config.curation import QualityClassifier
from pipeline_config.errors import SettingsError, SourceError, StageError, reading_error
from tasks.steps.shards import Fate, read_documents, removed

PREFIX = "__label__"
MODEL, METRICS = "model.bin", "metrics.json"
ZEROED_MEMORY = {"MALLOC_PERTURB_": "255"}
"""Environment in which new memory of more than a kilobyte is zero (glibc's mallopt(3), M_PERTURB).

fastText 0.9.2 with one thread fills a tenth of its first matrix with random numbers and leaves the rest as it
is: by chance what was there before, which is no number at times.
"""
DECISION = 0.5  # the score from which a document counts as positive in the figures of held-out documents


class LoadedClassifier:
    """A classifier that scores texts; the model is read at first use, once per process."""

    def __init__(self, settings: QualityClassifier, digest: str = ""):
        self.settings, self.digest = settings, digest

    def score(self, text: str) -> float:
        """Probability of the label.

        Raises:
            SettingsError: the model does not know the label.
        """
        model = load_model(self.settings.path, self.digest)
        label = PREFIX + self.settings.label
        if label not in model.get_labels():
            known = ", ".join(sorted(name.removeprefix(PREFIX) for name in model.get_labels())[:10])
            raise SettingsError(
                f"quality_filtering.classifiers: {self.settings.path} has no label {self.settings.label!r}; "
                f"it has {known}"
            )
        return score(model, text, label)

    def judge(self, text: str, notes: dict[str, Any]) -> Fate | None:
        """Why a text is removed by its score, which goes to the notes."""
        name, found = self.settings.name, self.score(text)
        notes[f"score_{name}"] = found
        least, most = self.settings.min_score, self.settings.max_score
        if least is not None and found < least:
            return removed(f"classifier_{name}", f"{found:.6g} < {least:g}")
        if most is not None and found > most:
            return removed(f"classifier_{name}", f"{found:.6g} > {most:g}")
        return None


def score(model: _FastText, text: str, label: str) -> float:
    """Probability of a label, 0 for a text that gives none."""
    labels, scores = model.predict(one_line(text), k=-1)
    found = dict(zip(labels, scores, strict=True))
    return min(1.0, float(found.get(label, 0.0)))


def one_line(text: str) -> str:
    """A text as fastText reads it: without line breaks, which end a text there, and without labels."""
    return text.replace("\n", " ").replace(PREFIX, " ")


@functools.lru_cache(maxsize=8)
def load_model(path: str, digest: str = "") -> _FastText:
    """A model from any fsspec URL.

    Raises:
        SourceError: there is none, it is not the one that is expected, or no fastText model.
    """
    data = read_model(path)
    if digest and hashlib.sha256(data).hexdigest() != digest:
        raise SourceError(f"the classifier {path} changed while it was used: start the run again")
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(data)
        file.flush()
        try:
            return _FastText(file.name)
        except ValueError as error:
            raise SourceError(f"the classifier {path} is no model of fastText: {error}") from None


def read_model(path: str) -> bytes:
    """The content of a model's file.

    Raises:
        SourceError: it cannot be read.
        UnreachableError: its storage does not answer.
    """
    try:
        with fsspec.open(path, "rb") as file:
            return file.read()
    except Exception as error:
        raise reading_error(error, path, f"the classifier {path} cannot be read: {error!r}") from None


def is_held_out(identity: str, settings: ClassifierTraining) -> bool:
    """Whether a document is kept from training, to measure on."""
    digest = hashlib.sha256(f"{settings.seed}:{identity}".encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8]) < settings.held_out_share * 2**64


def labelled(sets: dict[str, Sequence[str]], most: int) -> Iterator[tuple[str, str, str]]:
    """(label, id, text) of the documents in the shards of each label."""
    for label, shards in sets.items():
        documents = (document for shard in shards for document in read_documents(shard))
        for number, document in enumerate(documents):
            if number >= most:
                break
            yield label, document.id, one_line(document.text)


def train(sets: dict[str, Sequence[str]], settings: ClassifierTraining, folder: Path) -> dict[str, Any]:
    """Trains on the shards of each label, writes the model, and gives its figures on held-out documents.

    Raises:
        SourceError: a label has no documents to train on, or none to measure on.
        StageError: this process was started without `ZEROED_MEMORY`.
    """
    if any(os.environ.get(name) != value for name, value in ZEROED_MEMORY.items()):
        raise StageError(f"a classifier is trained in an environment with {ZEROED_MEMORY}; this one lacks it")
    training, held_out = folder / "training.txt", []
    counts = dict.fromkeys(sets, 0)
    with training.open("w", encoding="utf-8") as file:
        for label, identity, text in labelled(sets, settings.max_documents):
            if is_held_out(identity, settings):
                held_out.append((label, text))
            else:
                counts[label] += 1
                file.write(f"{PREFIX}{label} {text}\n")
    for label, count in counts.items():
        if not count or label not in {found for found, _ in held_out}:
            raise SourceError(
                f"the set {label} has {count} documents to train on and "
                f"{sum(found == label for found, _ in held_out)} to measure on; both need some"
            )
    model = fasttext.train_supervised(
        str(training),
        dim=settings.dimensions,
        epoch=settings.epochs,
        lr=settings.learning_rate,
        wordNgrams=settings.word_n_grams,
        minCount=settings.min_word_count,
        bucket=settings.buckets,
        seed=settings.seed,
        thread=1,
        verbose=0,
    )
    training.unlink()
    model.save_model(str(folder / MODEL))
    return {"trained_on": counts} | measures(_FastText(str(folder / MODEL)), held_out, list(sets))


def measures(model: _FastText, held_out: Iterable[tuple[str, str]], labels: list[str]) -> dict[str, Any]:
    """Precision and recall of each label on held-out documents, at half the probability."""
    table = {label: {"documents": 0, "found": 0, "right": 0} for label in labels}
    for label, text in held_out:
        table[label]["documents"] += 1
        for name in labels:
            if score(model, text, PREFIX + name) >= DECISION:
                table[name]["found"] += 1
                table[name]["right"] += name == label
    figures = {
        name: row
        | {
            "precision": row["right"] / row["found"] if row["found"] else None,
            "recall": row["right"] / row["documents"] if row["documents"] else None,
        }
        for name, row in table.items()
    }
    right = sum(row["right"] for row in table.values())
    total = sum(row["documents"] for row in table.values())
    return {"held_out": figures, "accuracy": right / total if total else None}


def main(arguments: list[str] | None = None) -> None:
    """Trains what a configuration file says; errors go to the standard error."""
    (path,) = arguments if arguments is not None else sys.argv[1:]
    config = json.loads(Path(path).read_text("utf-8"))
    folder = Path(config["folder"])
    try:
        found = train(config["sets"], ClassifierTraining.model_validate(config["settings"]), folder)
    except SourceError as error:
        sys.exit(f"SourceError: {error}")
    (folder / METRICS).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
