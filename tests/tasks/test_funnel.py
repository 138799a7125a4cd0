"""The funnel as a table."""

import pytest

from tasks.funnel import as_markdown, as_sentence, as_text, main_reasons
from tasks.stage import StageResult
from tasks.store import StageOutput

REPORT = {"read": 12345, "kept": 12000, "removed": {"short": 300, "long": 40}, "failed": {"error:X": 5}}


def result(report: dict, cached: bool = False, label: str = "crawl", seconds: float = 0.0) -> StageResult:
    output = StageOutput(stage="packing", key="k", digest="d", label=label)
    return StageResult(output, report, cached, 99.0, {"seconds": seconds})


def cells(*results: StageResult) -> list[str]:
    """The words of the last line of the table."""
    return as_text(results).split("\n")[-1].split()


def test_every_record_of_a_stage_is_in_its_line() -> None:
    made = result(REPORT, seconds=1.26)
    assert cells(made) == ["packing", "crawl", "12,345", "12,000", "340", "5", "1.3"]


def test_a_stage_without_records_has_no_counts() -> None:
    assert cells(result({"measures": {}}, seconds=2)) == ["packing", "crawl", "2.0"]


def test_a_cached_stage_says_so() -> None:
    assert cells(result(REPORT, cached=True))[-1] == "cached"
    assert "cached" not in cells(result(REPORT))
    assert "| cached |" in as_markdown([result(REPORT, cached=True)]).split("\n")[2]


def test_columns_stand_under_their_heads() -> None:
    head, *lines = as_text([result(REPORT), result(REPORT | {"read": 7}, cached=True, label="x")]).split("\n")
    for name in ("read", "kept", "removed", "failed", "seconds"):
        end = head.index(name) + len(name)
        assert all(line[end - 1] != " " and line[end : end + 2].strip() == "" for line in lines)


def test_the_funnel_of_no_stages_is_its_head() -> None:
    assert cells() == ["stage", "source", "read", "kept", "removed", "failed", "seconds"]


@pytest.mark.parametrize(
    ("report", "cached", "sentence"),
    [
        pytest.param(
            REPORT,
            False,
            "packing crawl: read 12,345, kept 12,000, removed 340, failed 5 "
            "(short 300, long 40, error:X 5), in 2.0 s",
            id="records",
        ),
        pytest.param(
            {"read": 7, "kept": 7, "removed": {}, "failed": {}},
            True,
            "packing crawl: read 7, kept 7, removed 0, failed 0, from the cache",
            id="cached",
        ),
        pytest.param({}, False, "packing crawl: done, in 2.0 s", id="no records"),
    ],
)
def test_the_log_has_a_sentence_for_each_stage(report: dict, cached: bool, sentence: str) -> None:
    assert as_sentence(result(report, cached, seconds=2)) == sentence


def test_markdown_has_as_many_cells_in_every_line() -> None:
    lines = as_markdown([result(REPORT), result({})]).split("\n")
    assert [line.count("|") for line in lines] == [10] * 4
    assert "| short 300, long 40, error:X 5 |" in lines[2]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param({}, "", id="none"),
        pytest.param({"removed": {"a": 1, "b": 2000}}, "b 2,000, a 1", id="most frequent first"),
        pytest.param({"removed": {"a": 1}, "failed": {"a": 2, "b": 1}}, "a 3, b 1", id="both kinds"),
        pytest.param({"removed": dict.fromkeys("abcde", 2) | {"f": 1}}, "a 2, b 2, c 2, d 2", id="four only"),
    ],
)
def test_main_reasons(report: dict, expected: str) -> None:
    assert main_reasons(report) == expected
