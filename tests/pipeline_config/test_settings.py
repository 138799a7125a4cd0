"""Settings: described, frozen, hashable, strict, and FineWeb's where nothing else is said."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import get_args

import pytest
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.filters.gopher_quality_filter import STOP_WORDS
from pydantic import ValidationError

from pipeline_config import curation, executors
from pipeline_config import settings as module
from pipeline_config.curation import FineWebQuality, GopherQuality, GopherRepetition
from pipeline_config.presets import load_settings, preset_names
from pipeline_config.settings import (
    CLEANING_STAGES,
    STAGES,
    CleaningStage,
    Execution,
    ModelSettings,
    Section,
    Settings,
    Source,
    Training,
)

SECTIONS = [
    found
    for found in (vars(module) | vars(executors) | vars(curation)).values()
    if isinstance(found, type) and issubclass(found, Section) and found is not Section
]
# entries of lists that are empty by default, and what sections have in common
OF_LISTS = {
    curation.LanguageRules,
    curation.LanguageThreshold,
    curation.QualityClassifier,
    curation.QualityRules,
}
SOURCE = {"name": "web", "kind": "warc", "uris": ["a.warc.gz"]}


def sections_of(section: Section) -> Iterator[Section]:
    yield section
    for value in vars(section).values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Section):
                yield from sections_of(inner)


def is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_section_and_every_field_is_described(section):
    assert section.__doc__, f"{section.__name__} has no docstring"
    undescribed = [
        name
        for name, field in section.model_fields.items()
        if not (field.description or (section is Settings and is_section(field.annotation)))
    ]
    assert undescribed == []


def test_every_section_is_reached_from_the_settings():
    reached = {type(section) for section in sections_of(load_settings("sample"))}
    assert reached == set(SECTIONS) - OF_LISTS


@pytest.mark.parametrize("preset", preset_names())
def test_no_setting_of_a_preset_can_be_changed(preset):
    for section in sections_of(load_settings(preset)):
        for name in type(section).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, name, getattr(section, name))


@pytest.mark.parametrize("preset", preset_names())
def test_settings_survive_json(preset):
    settings = load_settings(preset)
    assert Settings.model_validate(settings.model_dump(mode="json")) == settings
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_equal_settings_have_equal_hashes():
    one, other = load_settings("mini-mix"), load_settings("mini-mix")
    assert hash(one) == hash(other)
    assert len({one, other, load_settings("mini-crawl")}) == 2


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_an_unknown_name_is_refused(section):
    with pytest.raises(ValidationError) as caught:
        section.model_validate({"no_such_setting": 1})
    assert ("extra_forbidden", ("no_such_setting",)) in [(e["type"], e["loc"]) for e in caught.value.errors()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"uris": []}, "either uris or dataset", id="no_input"),
        pytest.param({"kind": "documents", "dataset": "d", "revision": "r"}, "either uris", id="two_inputs"),
        pytest.param({"kind": "documents", "uris": [], "dataset": "d"}, "revision", id="no_revision"),
        pytest.param({"dataset": "d", "uris": [], "revision": "r"}, "documents", id="dataset_of_warcs"),
        pytest.param({"kind": "documents", "max_warcs": 3}, "max_warcs", id="max_warcs_of_documents"),
        pytest.param({"name": "../elsewhere"}, "name", id="name_with_slashes"),
        pytest.param({"name": ""}, "name", id="no_name"),
        pytest.param({"name": "n" * 65}, "name", id="long_name"),
        pytest.param({"kind": "pdf"}, "kind", id="unknown_kind"),
        pytest.param({"weight": 0}, "weight", id="no_weight"),
        pytest.param({"stages": ["packing"]}, "stages", id="no_cleaning_stage"),
        pytest.param({"uris": ["{dump}/a"]}, "pattern of snapshot names as dump", id="pattern_without_dump"),
        pytest.param({"dump": "D", "since": "C"}, "for sources with {dump} in uris", id="since_of_one_dump"),
        pytest.param({"snapshots": "list"}, "for sources with {dump} in uris", id="list_of_one_dump"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(change, message):
    Source.model_validate(SOURCE)
    with pytest.raises(ValidationError, match=message):
        Source.model_validate(SOURCE | change)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        pytest.param(ModelSettings, {"width": 130, "heads": 4}, "not divisible by heads 4", id="heads"),
        pytest.param(Training, {"rows_per_step": 16, "processes": 3}, "by processes 3", id="processes"),
        pytest.param(
            Settings, {"name": "x", "sources": [SOURCE, SOURCE]}, "must differ: web, web", id="names"
        ),
        pytest.param(Settings, {"name": "x", "sources": []}, "sources", id="no_source"),
        pytest.param(
            Execution,
            {"from_stage": "packing", "until": "bpe_training"},
            "from_stage packing comes after until bpe_training",
            id="from_after_until",
        ),
        pytest.param(Execution, {"until": "evaluation"}, "until", id="until_no_stage"),
        pytest.param(GopherRepetition, {"dup_line_frac": 1.5}, "dup_line_frac", id="share_above_1"),
        pytest.param(GopherRepetition, {"dup_line_frac": float("nan")}, "dup_line_frac", id="share_nan"),
    ],
)
def test_values_that_contradict_each_other_are_refused(section, values, message):
    with pytest.raises(ValidationError, match=message):
        section.model_validate(values)


def test_installed_documentation_needs_no_input():
    assert Source(name="docs", kind="installed_documentation").uris == ()


def test_cleaning_stages_are_sections_in_the_order_of_the_settings():
    assert get_args(CleaningStage) == CLEANING_STAGES
    assert [name for name in Settings.model_fields if name in CLEANING_STAGES] == list(CLEANING_STAGES)


@pytest.mark.parametrize(
    ("section", "block"),
    [
        pytest.param(GopherRepetition, GopherRepetitionFilter, id="gopher_repetition"),
        pytest.param(GopherQuality, GopherQualityFilter, id="gopher_quality"),
        pytest.param(FineWebQuality, FineWebQualityFilter, id="fineweb"),
    ],
)
def test_defaults_are_those_of_datatroves_filter(section, block):
    parameters = inspect.signature(block).parameters
    theirs = {name: parameters[name].default for name in section.model_fields}
    if "stop_words" in theirs:  # null stands for these
        theirs["stop_words"] = tuple(STOP_WORDS)
    assert section().model_dump() == theirs


def test_a_run_may_begin_and_end_with_the_same_stage():
    execution = Execution(from_stage="packing", until="packing")
    assert (execution.from_stage, execution.until) == ("packing", "packing")


def test_the_stages_that_can_be_chosen_are_those_of_the_pipeline_in_its_order():
    modules = [importlib.import_module(f"tasks.{name}") for name in STAGES]
    assert [found.STAGE.name for found in modules] == list(STAGES)
    assert [name for name in STAGES if name in CLEANING_STAGES] == list(CLEANING_STAGES)


@pytest.mark.parametrize(
    ("section", "field", "words"),
    [
        pytest.param(Execution, "workers", r"Worker processes .* \(at least 1, at most 1,024\)$", id="both"),
        pytest.param(Execution, "max_stage_seconds", r"no limit\. \(at least 1\)$", id="may_be_empty"),
        pytest.param(Source, "weight", r" \(above 0\)$", id="exclusive"),
        pytest.param(GopherRepetition, "dup_line_frac", r" \(at least 0, at most 1\)$", id="share"),
        pytest.param(Execution, "until", r"^Last stage to run\.$", id="no_number"),
    ],
)
def test_the_form_shows_the_range_of_a_number(section, field, words):
    assert re.search(words, section.model_json_schema()["properties"][field]["description"])


def test_the_form_shows_choices_and_groups_in_the_order_of_the_settings():
    schema = Settings.model_json_schema()
    assert list(schema["properties"]) == list(Settings.model_fields)
    execution = schema["$defs"]["Execution"]["properties"]
    assert execution["until"]["enum"] == list(STAGES)
    assert execution["from_stage"]["anyOf"][0]["enum"] == list(STAGES)
