"""FineWeb's way: what DataTrove's formatter does with each document on its own, whatever the text."""

import pytest
from datatrove.pipeline.formatters import PIIFormatter
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_config.curation import PiiScrubbing
from tasks.steps.pii import fineweb
from tasks.steps.pii_scrubbing import scrub
from tests.benchmarks.curation_pii import read_lines

FINEWEB = PiiScrubbing(mode="fineweb")
ALPHABETS = ("ab.@-", "a1.@'_é ", "12.@8[]:a", "8.1 2@", "@.a-\n[]:1é_'", "аa.@ß\u3000٣3.\x1c")
TEXTS = [
    "Write to ann@company.com, bob@company.com or carl@company.com; not to 8.8.8.8 but 9.9.9.9.",
    "a@b.co\tc@d.co\nb@c.co\u00a0d@e.co\u3000e@f.co\x1cf@g.co",
    "<ann@company.com>(bob@company.com)[carl@company.com]'dan@company.com'",
    "ann@company.com,bob@company.com;8.8.8.8/24;user@[10.0.0.1]",
    "nothing to see here @ all, not even @handle or 3@4",
    "ünïcödé.name@company.com and name@ünïcode.com and naïve@co.uk.",
    "10.9.8.7.6 8.8.8.8a@b.co 1.8.8.8.8@x.org.8.8.8.8 ::ffff:8.8.8.8",
    "8.8.8.8 " * 8 + "a@b.co " * 3,
]


def check(text: str) -> None:
    assert scrub(text, "any", FINEWEB).text == PIIFormatter().format(text)


def test_the_patterns_are_those_of_the_installed_datatrove():
    assert PIIFormatter().emails_replacer.regex.pattern == fineweb.EMAIL


@pytest.mark.parametrize("text", TEXTS)
def test_the_result_is_that_of_datatroves_formatter(text):
    check(text)


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_the_result_is_that_of_datatroves_formatter_on_generated_texts(alphabet):
    @settings(max_examples=500, deadline=None, database=None, derandomize=True)
    @given(st.text(alphabet, max_size=60))
    def agree(text: str) -> None:
        check(text)

    agree()


@pytest.mark.parametrize("name", ["pii/pattern_cases", "pii/presidio_synth_v2", "crawl/extraction_gold"])
def test_the_result_is_that_of_datatroves_formatter_on_shared_texts(shared_data, name):
    found = [line.get("text") or "" for line in read_lines(shared_data / f"{name}.jsonl.gz")]
    for text in [*found, "\n\n".join(found[:500])]:
        check(text)
