"""Classifiers: the same texts give the same model, scores are recorded, and thresholds remove."""

import hashlib
import json
import random
import sys
from pathlib import Path

import pytest
from datatrove.data import Document

from pipeline_config.classifiers import ClassifierTraining
from pipeline_config.curation import QualityFiltering
from pipeline_config.errors import SettingsError, SourceError, StageError
from tasks.child import run_child
from tasks.steps.classifier import METRICS, MODEL, ZEROED_MEMORY, is_held_out, load_model, one_line, train
from tasks.steps.quality_filtering import FilterQuality, value_fields
from tasks.steps.shards import FATE, NOTES, WriteShard

WORDS = {
    "sea": "boats harbour salt wind waves fish anchor island sail tide".split(),  # noqa: SIM905
    "city": "tram street shop office tower market bridge square bus lamp".split(),  # noqa: SIM905
}
SMALL = ClassifierTraining(dimensions=10, buckets=1000, epochs=10, learning_rate=0.5)
OFF = {"gopher_repetition": None, "gopher_quality": None, "c4": None, "fineweb": None}


def text_of(label: str, seed: int) -> str:
    return " ".join(random.Random(f"{label}{seed}").choices([*WORDS[label], "the", "of", "and"], k=30))


@pytest.fixture(scope="module")
def sets(tmp_path_factory, run_step) -> dict[str, list[str]]:
    """Shards of 150 documents of each label."""
    made = {}
    for label in WORDS:
        folder = tmp_path_factory.mktemp(label)
        documents = [Document(text=text_of(label, n), id=f"{label}-{n}", metadata={}) for n in range(150)]
        run_step(WriteShard(str(folder)), documents)
        made[label] = [str(folder / "documents" / "part-00000.parquet")]
    return made


@pytest.fixture(scope="module")
def trained(sets, tmp_path_factory) -> Path:
    return trained_in(tmp_path_factory.mktemp("model"), sets)


def trained_in(folder: Path, sets: dict[str, list[str]], settings: ClassifierTraining = SMALL) -> Path:
    """The folder, with a model that a process of its own trained, as the stage has it."""
    path = folder / "config.json"
    config = {"sets": sets, "settings": settings.model_dump(mode="json"), "folder": str(folder)}
    path.write_text(json.dumps(config))
    run_child([sys.executable, "-m", "tasks.steps.classifier", str(path)], environment=ZEROED_MEMORY)
    path.unlink()
    return folder


def test_precision_and_recall_are_measured_on_documents_that_were_held_out(trained):
    found = json.loads((trained / METRICS).read_text())
    held_out = {label: sum(is_held_out(f"{label}-{n}", SMALL) for n in range(150)) for label in WORDS}
    assert {label: row["documents"] for label, row in found["held_out"].items()} == held_out
    assert found["trained_on"] == {label: 150 - count for label, count in held_out.items()}
    for row in found["held_out"].values():
        assert row["right"] <= min(row["found"], row["documents"])
        assert min(row["precision"], row["recall"]) > 0.9


def test_the_same_texts_give_the_same_model_and_another_seed_another(sets, trained, tmp_path):
    digests = [hashlib.sha256((trained / MODEL).read_bytes()).digest()]
    for number, settings in enumerate((SMALL, SMALL.model_copy(update={"seed": 7}))):
        folder = tmp_path / str(number)
        folder.mkdir()
        trained_in(folder, sets, settings)
        digests.append(hashlib.sha256((folder / MODEL).read_bytes()).digest())
    assert digests[0] == digests[1] != digests[2]
    assert {path.name for path in folder.iterdir()} == {MODEL, METRICS}


def test_training_in_memory_that_holds_anything_is_refused(sets, tmp_path):
    with pytest.raises(StageError, match="MALLOC_PERTURB_"):
        train(sets, SMALL, tmp_path)


def test_labels_that_stand_in_texts_are_no_labels(run_step, tmp_path, sets):
    run_step(
        WriteShard(str(tmp_path)), [Document(text="__label__other words " * 9, id=f"{n}") for n in range(50)]
    )
    (folder := tmp_path / "model").mkdir()
    trained_in(folder, {**sets, "third": [str(tmp_path / "documents" / "part-00000.parquet")]})
    labels = load_model(str(folder / MODEL)).get_labels()
    assert sorted(labels) == ["__label__city", "__label__sea", "__label__third"]


def test_a_set_that_is_too_small_is_refused(sets, tmp_path, run_step, monkeypatch):
    monkeypatch.setenv(*ZEROED_MEMORY.copy().popitem())
    run_step(WriteShard(str(tmp_path)), [Document(text="one", id="only")])
    small = {"sea": sets["sea"], "none": [str(tmp_path / "documents" / "part-00000.parquet")]}
    with pytest.raises(SourceError, match=r"the set none has .* both need some"):
        train(small, SMALL, tmp_path)


def settings_of(path: Path | str, **values) -> QualityFiltering:
    one = {"name": "sea", "path": str(path), "label": "sea"} | values
    return QualityFiltering.model_validate(OFF | {"classifiers": [one]})


def judged(run_step, settings: QualityFiltering, text: str) -> Document:
    [document] = run_step(FilterQuality(settings), [Document(text=text, id="x", metadata={})])
    return document


@pytest.mark.parametrize(
    ("limits", "label", "beyond"),
    [
        pytest.param({}, "city", None, id="recorded only"),
        pytest.param({"min_score": 0.5}, "sea", None, id="above the least"),
        pytest.param({"min_score": 0.5}, "city", "< 0.5", id="below the least"),
        pytest.param({"max_score": 0.5}, "sea", "> 0.5", id="above the most"),
    ],
)
def test_scores_are_recorded_and_thresholds_remove(run_step, trained, limits, label, beyond):
    document = judged(run_step, settings_of(trained / MODEL, **limits), text_of(label, 1000))
    fate, score = document.metadata.get(FATE), document.metadata[NOTES]["score_sea"]
    assert (score > 0.5) is (label == "sea")
    if beyond is None:
        assert fate is None
    else:
        assert (fate.reason, fate.value) == ("classifier_sea", f"{score:.6g} {beyond}")


def test_every_document_is_scored_with_the_reason_of_the_rules(run_step, trained):
    settings = settings_of(trained / MODEL, min_score=0.9).model_copy(
        update={"gopher_quality": QualityFiltering().gopher_quality}
    )
    document = judged(run_step, settings, text_of("city", 1))
    assert document.metadata[FATE].reason == "gopher_short_doc"
    assert "score_sea" in document.metadata[NOTES]
    assert "score_sea" in {field.name for field in value_fields(settings)}


@pytest.mark.parametrize(
    ("path", "values", "error", "message"),
    [
        pytest.param("/nowhere.bin", {}, SourceError, "there is no file /nowhere.bin", id="no file"),
        pytest.param(__file__, {}, SourceError, "is no model of fastText", id="no model"),
        pytest.param(
            None, {"label": "hq"}, SettingsError, "has no label 'hq'; it has city, sea", id="no such label"
        ),
    ],
)
def test_a_model_that_cannot_be_used_stops_the_stage(run_step, trained, path, values, error, message):
    with pytest.raises(error, match=message):
        judged(run_step, settings_of(path or trained / MODEL, **values), "text")


def test_a_model_that_changed_is_refused(trained):
    with pytest.raises(SourceError, match="changed while it was used"):
        load_model(str(trained / MODEL), "0" * 64)


def test_a_text_is_one_line_without_labels():
    assert one_line("a\nb\n\n__label__c") == "a b   c"
