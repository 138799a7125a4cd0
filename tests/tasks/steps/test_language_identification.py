"""Language identification: what is kept, what is removed with which score, and where the model is."""

import gzip
import hashlib
import json
from dataclasses import replace

import pytest
from datatrove.data import Document

from pipeline_config.curation import LanguageIdentification
from tasks.steps.language_identification import IdentifyLanguage, load_model, model_path
from tasks.steps.shards import FATE

GOLDEN = "1cbdb0a7164eec3493fc626417adab08390da8ace2cd0ab00699ef330f1e39fe"
TEXTS = {
    "en": "The committee will meet again on Thursday to discuss the plans for the new library in the town.",
    "de": "Der Ausschuss trifft sich am Donnerstag wieder, um über die Pläne für die neue Bücherei zu reden.",
    "fr": "Le comité se réunira de nouveau jeudi pour discuter des projets de la nouvelle bibliothèque.",
    "ru": "Комитет снова соберётся в четверг, чтобы обсудить планы новой библиотеки в городе.",
    "zh": "委员会将于星期四再次开会，讨论城里新图书馆的计划。",
}


@pytest.fixture(scope="module")
def identify(run_step):
    """Runs one text through the step."""

    def run(text: str, **settings) -> Document:
        step = IdentifyLanguage(LanguageIdentification(**settings))
        [document] = run_step(step, [Document(text=text, id="x", metadata={})])
        return document

    return run


def test_the_model_is_lid_176_from_the_package():
    assert model_path().name == "lid.176.ftz"
    digest = hashlib.sha256(model_path().read_bytes()).hexdigest()
    assert digest.startswith("8f3472cf")
    assert digest.endswith("603e83")


def test_the_model_is_loaded_once():
    assert load_model() is load_model()


@pytest.mark.parametrize("language", TEXTS)
def test_every_document_is_labelled_with_language_and_score(identify, language):
    metadata = identify(TEXTS[language]).metadata
    assert metadata["language"] == language
    assert metadata["language_score"] > 0.65


@pytest.mark.parametrize("language", TEXTS)
def test_only_the_languages_asked_for_are_kept(identify, language):
    document = identify(TEXTS[language])
    fate = document.metadata.get(FATE)
    if language == "en":
        assert fate is None
    else:
        score = document.metadata["language_score"]
        assert (fate.kind, fate.reason, fate.value) == ("removed", "language", f"{language} {score:.4f}")


def test_several_languages_can_be_kept(identify):
    kept = [
        code for code, text in TEXTS.items() if FATE not in identify(text, languages=("de", "ru")).metadata
    ]
    assert kept == ["de", "ru"]


@pytest.mark.parametrize(("margin", "is_kept"), [(-0.001, True), (0.001, False)], ids=["below", "above"])
def test_the_threshold_decides(identify, margin, is_kept):
    mixed = TEXTS["en"][:60] + TEXTS["fr"][:60]
    score = identify(mixed, min_score=0).metadata["language_score"]
    assert 0.1 < score < 0.95
    language = identify(mixed, min_score=0).metadata["language"]
    document = identify(mixed, languages=(language,), min_score=score + margin)
    assert (FATE not in document.metadata) is is_kept


def test_a_second_language_above_the_threshold_keeps_a_document(identify):
    mixed = TEXTS["de"] + " " + TEXTS["en"]
    found = identify(mixed, languages=("en",), min_score=0.05)
    assert (found.metadata["language"], found.metadata.get(FATE)) == ("de", None)


@pytest.mark.parametrize("text", ["", " \n", "...", "\x00", "x" * 100_000])
def test_a_text_without_a_language_gets_a_fate_and_no_error(identify, text):
    fate = identify(text).metadata[FATE]
    assert (fate.kind, fate.reason) == ("removed", "language")


def test_line_breaks_do_not_matter(identify):
    one, other = identify(TEXTS["en"]), identify(TEXTS["en"].replace(" ", "\n"))
    assert one.metadata["language_score"] == other.metadata["language_score"]


def test_english_and_german_of_a_public_test_set_are_told_apart(identify, shared_data):
    """Measured: 97.3 % of the English and none of the German texts of the shared set pass."""
    with gzip.open(shared_data / "lid" / "lid_gold.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [record for record in map(json.loads, file) if record["lang"] in ("en", "de")]
    share = {}
    for code in ("en", "de"):
        kept = [FATE not in identify(r["text"]).metadata for r in records if r["lang"] == code]
        share[code] = sum(kept) / len(kept)
    assert share["en"] > 0.95
    assert share["de"] < 0.02


def test_golden(run_step, behaviour, fixed_documents):
    done = run_step(IdentifyLanguage(LanguageIdentification()), fixed_documents())
    for document in done:  # the value holds the score in full
        if FATE in document.metadata:
            document.metadata[FATE] = replace(document.metadata[FATE], value="")
    assert behaviour(done) == GOLDEN, (
        "behaviour changed: raise the version in tasks/language_identification.py"
    )
