"""The flow from two labelled sets to a classifier, and a quality stage that uses it."""

import json
from pathlib import Path

import pytest
from prefect import flow

from flows.train_classifier import read, train_classifier
from pipeline_config.classifiers import ClassifierTraining
from pipeline_config.errors import SettingsError
from pipeline_config.settings import Settings, Source
from tasks.document_import import import_documents
from tasks.lineage import all_runs
from tasks.quality_filtering import filter_quality
from tasks.run import open_run

SETTINGS = ClassifierTraining(dimensions=10, buckets=1000, epochs=10, learning_rate=0.5)


def source(folder: Path, name: str, words: str) -> Source:
    path = folder / f"{name}.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"{words} {n}", "id": f"{name}-{n}"}) + "\n" for n in range(60))
    )
    return Source(name=name, kind="documents", uris=(str(path),))


@pytest.fixture
def sets(tmp_path: Path, home: Path) -> tuple[Source, Source]:
    return source(tmp_path, "sea", "boats and waves"), source(tmp_path, "city", "trams and streets")


def test_a_trained_classifier_is_recorded_and_found_again(sets, home):
    first = train_classifier(*sets, SETTINGS)
    assert first["accuracy"] == 1.0
    assert first["precision of sea"] == first["recall of city"] == 1.0
    assert train_classifier(*sets, SETTINGS) == first
    assert len(list((home / "store" / "classifier").glob("*/manifest.json"))) == 1
    record = all_runs()[-1]
    assert [node.stage for node in record.nodes] == ["document_import", "document_import", "classifier"]
    assert len(record.last("classifier").inputs) == 2


def quality_keys(sets, path: str) -> str:
    """The key of the quality stage on the first set, with a classifier that keeps all."""
    one = {"name": "sea", "path": path, "label": "sea", "min_score": 0.5}
    rules = dict.fromkeys(("gopher_repetition", "gopher_quality", "c4", "fineweb")) | {"classifiers": [one]}
    settings = Settings.model_validate({"name": "q", "sources": [sets[0]], "quality_filtering": rules})

    @flow(name="test-quality")
    def body() -> str:
        with open_run(settings) as run:
            documents = import_documents(run, settings.sources[0])
            return filter_quality(run, settings.sources[0], documents).key

    return body()


def test_a_classifiers_content_is_part_of_the_key_and_its_path_is_not(sets, tmp_path):
    model = Path(train_classifier(*sets, SETTINGS)["model"])
    (tmp_path / "copy.bin").write_bytes(model.read_bytes())
    assert quality_keys(sets, str(model)) == quality_keys(sets, str(tmp_path / "copy.bin"))
    other = train_classifier(*sets, SETTINGS.model_copy(update={"seed": 5}))["model"]
    assert quality_keys(sets, other) != quality_keys(sets, str(model))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("positive: {}", "must hold positive and negative", id="one set"),
        pytest.param("positive: {a: 1}\nnegative: {}", "cannot be read as the settings", id="wrong field"),
        pytest.param("{", "cannot be read", id="no YAML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    (tmp_path / "classifier.yaml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        read(str(tmp_path / "classifier.yaml"))


def test_crawls_are_no_labelled_sets(sets):
    crawl = Source(name="cc", kind="warc", uris=("a.warc.gz",))
    with pytest.raises(SettingsError, match="kind documents"):
        train_classifier(crawl, sets[1], SETTINGS)
