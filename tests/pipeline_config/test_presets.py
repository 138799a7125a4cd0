"""Presets and overrides: what they set, and what a refusal says."""

import pytest

from pipeline_config.errors import SettingsError
from pipeline_config.presets import PRESETS, apply_overrides, full_path, load_settings, preset_names
from pipeline_config.settings import SampleCrawl

PRESET_NAMES = [
    "common-crawl",
    "common-crawl-snapshots",
    "fineweb-exact",
    "mini-crawl",
    "mini-mix",
    "mini-snapshots",
    "sample",
]
GOOD = "sources: [{name: web, kind: warc, uris: [a.warc.gz]}]\n"


@pytest.fixture
def preset_file(tmp_path):
    """Writes a preset and returns its path."""

    def write(text: str | bytes, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_the_presets_that_ship_are_listed():
    assert preset_names() == PRESET_NAMES


@pytest.mark.parametrize("name", [path.stem for path in sorted(PRESETS.iterdir())])
def test_every_preset_loads_under_its_own_name(name):
    settings = load_settings(name)
    assert settings.name == name
    assert settings == load_settings(str(PRESETS / f"{name}.yaml"))


def test_a_preset_file_is_named_by_its_file_unless_it_names_itself(preset_file):
    assert load_settings(preset_file(GOOD)).name == "mine"
    assert load_settings(preset_file(GOOD + "name: other", "x.yml")).name == "other"


@pytest.mark.parametrize(
    ("override", "where", "value"),
    [
        pytest.param("training.steps=7", ("training", "steps"), 7, id="number"),
        pytest.param("training.learning_rate=1e-3", ("training", "learning_rate"), 0.001, id="exponent"),
        pytest.param("sources.0.weight=2.5", ("sources", 0, "weight"), 2.5, id="in_a_list"),
        pytest.param(
            "sources.1.fields.text=body", ("sources", 1, "fields", "text"), "body", id="new_section"
        ),
        pytest.param("quality_filtering.c4=null", ("quality_filtering", "c4"), None, id="switched_off"),
        pytest.param("language_identification.languages=[en, de]", None, ("en", "de"), id="a_list"),
        pytest.param("sources.0.base=a=b", ("sources", 0, "base"), "a=b", id="equals_sign_in_the_value"),
    ],
)
def test_an_override_sets_one_value(override, where, value):
    found = load_settings("mini-crawl", [override])
    for part in where or ("language_identification", "languages"):
        found = found[part] if isinstance(part, int) else getattr(found, part)
    assert found == value


def test_an_override_changes_nothing_else_and_the_last_one_wins():
    changed = load_settings("sample", ["training.steps=7", "training.steps=8"])
    plain = load_settings("sample")
    assert changed.training.steps == 8
    assert changed.model_copy(update={"training": plain.training}) == plain


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        pytest.param("training.stepz=1", ["training.stepz", "no such setting", "steps"], id="unknown_field"),
        pytest.param("trainign.steps=1", ["trainign", "no such setting", "training"], id="unknown_section"),
        pytest.param("sources.0.urls=[a]", ["sources.0.urls", "uris"], id="unknown_field_in_a_list"),
        pytest.param("sources.0.fields.txt=a", ["sources.0.fields.txt", "text"], id="unknown_nested_field"),
        pytest.param(
            "quality_filtering.c4.min_sentences=1",
            ["quality_filtering.c4.min_sentences", "min_num_sentences"],
            id="unknown_field_of_an_optional_section",
        ),
        pytest.param(
            "quality_filtering.fineweb.short_line_thr=-0.1",
            ["quality_filtering.fineweb.short_line_thr", "-0.1"],
            id="negative_threshold",
        ),
        pytest.param("training.steps=soon", ["training.steps", "'soon'"], id="no_number"),
        pytest.param("training.steps=0", ["training.steps", "0"], id="too_small"),
        pytest.param("sources.9.weight=1", ["sources.9.weight", "'9'", "list of 2"], id="index_too_large"),
        pytest.param("sources.2.weight=1", ["sources.2.weight", "list of 2"], id="index_one_too_large"),
        pytest.param("sources.-1.weight=1", ["sources.-1.weight", "'-1'"], id="index_negative"),
        pytest.param("sources.web.weight=1", ["sources.web.weight", "'web'"], id="index_no_number"),
        pytest.param("sources.0.name.first=a", ["sources.0.name.first", "has no fields"], id="below_a_value"),
        pytest.param("training.steps=[1", ["training.steps", "'[1'"], id="not_yaml"),
        pytest.param("training.steps", ["'training.steps'", "section.field=value"], id="no_value"),
        pytest.param("=3", ["'=3'", "section.field=value"], id="no_field"),
    ],
)
def test_a_wrong_override_is_refused_with_its_path(override, parts):
    with pytest.raises(SettingsError) as caught:
        load_settings("mini-crawl", [override])
    missing = [part for part in parts if part not in str(caught.value)]
    assert missing == [], str(caught.value)


def test_the_message_lists_all_allowed_names():
    with pytest.raises(SettingsError) as caught:
        load_settings("sample", ["sample_crawl.pages=3"])
    assert str(caught.value).endswith("here are: " + ", ".join(SampleCrawl.model_fields))


def test_all_problems_are_told_at_once():
    with pytest.raises(SettingsError) as caught:
        load_settings("sample", ["training.steps=0", "packing.batch=1", "execution.workers=0"])
    paths = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert sorted(paths) == ["execution.workers", "packing.batch", "training.steps"]


@pytest.mark.parametrize("name", ["nothing", "", "sample.json", "no/such.yaml", "sample "])
def test_an_unknown_preset_is_refused_with_the_known_ones(name):
    with pytest.raises(SettingsError, match=", ".join(PRESET_NAMES)) as caught:
        load_settings(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("sources: [", "not valid YAML", id="open_bracket"),
        pytest.param(b"\xff\xfe\x00", "not valid YAML", id="not_text"),
        pytest.param("- a\n- b", "not list", id="a_list"),
        pytest.param("", "not NoneType", id="empty"),
        pytest.param("just words", "not str", id="a_string"),
    ],
)
def test_a_file_that_is_no_preset_is_refused_by_name(preset_file, text, message):
    path = preset_file(text)
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(path)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("training: {steps: 3}", "sources: this setting is required", id="no_sources"),
        pytest.param("sources: [{kind: warc, uris: [a]}]", "sources.0.name: this setting", id="no_name"),
        pytest.param(GOOD + "1: 2", "settings", id="key_that_is_no_string"),
        pytest.param(GOOD + "training: 5", "training: 5 is refused", id="value_for_a_section"),
        pytest.param(GOOD + "name: a b", "name: 'a b' is refused", id="name_with_a_space"),
    ],
)
def test_a_preset_with_a_wrong_value_is_refused_with_its_path(preset_file, text, message):
    with pytest.raises(SettingsError, match=message):
        load_settings(preset_file(text))


NESTED = {
    "sources": [{"name": "web", "weight": 1.0}],
    "quality_filtering": {"gopher_quality": {"min_doc_words": 50, "max_doc_words": 9}, "c4": None},
    "bpe_training": {"seed": 1},
    "training": {"steps": 3, "warmup_steps": 1, "model": {"width": 2}},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param("training.steps", "training.steps", id="whole"),
        pytest.param("min_doc_words", "quality_filtering.gopher_quality.min_doc_words", id="last name"),
        pytest.param(
            "quality.min_doc_words", "quality_filtering.gopher_quality.min_doc_words", id="a word of a level"
        ),
        pytest.param(
            "quality_filtering.min_doc_words",
            "quality_filtering.gopher_quality.min_doc_words",
            id="a level left out",
        ),
        pytest.param("gopher.min", "quality_filtering.gopher_quality.min_doc_words", id="words of both"),
        pytest.param("c4", "quality_filtering.c4", id="a section"),
        pytest.param("training", "training", id="a whole name wins over a word of another"),
        pytest.param("bpe.seed", "bpe_training.seed", id="first word of a level"),
        pytest.param("model.width", "training.model.width", id="inner levels"),
        pytest.param("sources.0.weight", "sources.0.weight", id="sources stay as they are"),
        pytest.param("sources.7.nothing", "sources.7.nothing", id="sources are looked at later"),
        pytest.param("nothing", "nothing", id="unknown names stay as they are"),
        pytest.param("width.model", "width.model", id="levels in another order"),
        pytest.param("words_doc", "words_doc", id="words in another order"),
        pytest.param("min_doc_word", "min_doc_word", id="parts of words"),
        pytest.param("", "", id="empty"),
        pytest.param("..", "..", id="only dots"),
    ],
)
def test_a_short_path_means_the_one_setting_that_fits(path, found):
    assert full_path(NESTED, path) == found


@pytest.mark.parametrize(
    ("path", "fitting"),
    [
        pytest.param(
            "doc_words",
            "quality_filtering.gopher_quality.min_doc_words, quality_filtering.gopher_quality.max_doc_words",
            id="two fields",
        ),
        pytest.param("steps", "training.steps, training.warmup_steps", id="a whole name and a word"),
        pytest.param("quality", "quality_filtering, quality_filtering.gopher_quality", id="two levels"),
    ],
)
def test_a_short_path_that_fits_several_settings_is_refused_with_them(path, fitting):
    with pytest.raises(SettingsError, match="several settings fit") as caught:
        full_path(NESTED, path)
    assert str(caught.value) == f"{path}: several settings fit: {fitting}. Give one of them whole"


def test_overrides_change_what_they_name_and_nothing_else():
    settings = load_settings("sample")
    changed = apply_overrides(
        settings, ["quality.min_doc_words=30", "sources.0.weight=2", "min_doc_words=31"]
    )
    assert changed.quality_filtering.gopher_quality.min_doc_words == 31
    assert changed.sources[0].weight == 2
    expected = load_settings(
        "sample", ["quality_filtering.gopher_quality.min_doc_words=31", "sources.0.weight=2"]
    )
    assert changed == expected
    assert settings == load_settings("sample")


def test_no_overrides_change_nothing():
    settings = load_settings("mini-crawl")
    assert apply_overrides(settings, []) == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        pytest.param(
            "min_doc_words=-1", "quality_filtering.gopher_quality.min_doc_words: -1", id="refused value"
        ),
        pytest.param("min_doc_words", "is not of the form section.field=value", id="no value"),
        pytest.param("=1", "'=1' is not of the form", id="no path"),
        pytest.param("nothing=1", "nothing: there is no such setting", id="unknown"),
        pytest.param("seed=1", "several settings fit", id="ambiguous"),
        pytest.param("min_doc_words=[1", "is not a YAML value", id="not YAML"),
        pytest.param("min_doc_words=!!python/object:x {}", "is not a YAML value", id="a YAML object"),
        pytest.param("min_doc_words='; DROP TABLE x", "is not a YAML value", id="SQL"),
        pytest.param("sources.0.weight=0", "sources.0.weight: 0", id="in a source"),
        pytest.param("sources.9.weight=1", "list of", id="a source that is not there"),
        pytest.param("min_doc_words.x=1", "there is no such|has no fields", id="below a value"),
    ],
)
def test_a_wrong_override_of_settings_is_refused(override, message):
    with pytest.raises(SettingsError, match=message):
        apply_overrides(load_settings("sample"), [override])
