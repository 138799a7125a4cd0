"""Why: a seeded sample of what a reason removed, and the kept documents next to the threshold."""

import pyarrow as pa
import pytest

from pipeline_config.errors import AuditError
from tasks.audit.removal_review import MOST_COMPARED, _removed_values, why
from tasks.steps.shards import ANNOTATION_SCHEMA

SHORT = "gopher_short_doc"
WORDS = "The plain words of a kept document go on and on with some more of them. "


def many(hand, make, kept: int = 3, gone: int = 60):
    """A quality filter that kept some documents and removed many for one reason and one for another."""
    rows = [make.document(f"kept-{n}", text=WORDS * (n + 1)) for n in range(kept)]
    short = [make.lost(f"gone-{n:02d}", SHORT, str(n % 50)) for n in range(gone)]
    first = hand.output("document_import", rows, label="web")
    other = make.lost("other", "curly_bracket", "1")
    good = hand.output("quality_filtering", rows, [*short, other], label="web", inputs=[first])
    return hand.ledger(first, good)


def sample(ledger, **options) -> list[str]:
    """The ids of the sample."""
    return [row["id"] for row in why(ledger, "quality_filtering", SHORT, **options)["sample"]]


def test_a_sample_is_reproducible_and_another_seed_takes_another(hand, make):
    ledger = many(hand, make)
    assert sample(ledger, sample=10) == sample(ledger, sample=10)
    assert set(sample(ledger, sample=10, seed=1)) != set(sample(ledger, sample=10, seed=2))
    assert sample(ledger, sample=5, seed=3) == sample(ledger, sample=10, seed=3)[:5]


def test_every_document_of_the_reason_can_be_in_the_sample_and_no_other(hand, make):
    ledger = many(hand, make)
    assert sorted(sample(ledger, sample=1000)) == [f"gone-{n:02d}" for n in range(60)]
    drawn = [identity for seed in range(40) for identity in sample(ledger, sample=10, seed=seed)]
    counts = [drawn.count(f"gone-{n:02d}") for n in range(60)]
    assert min(counts) >= 1
    assert max(counts) <= 20  # 7 each on average


def test_the_counts_are_those_of_the_stage(hand, make):
    found = why(many(hand, make), "quality_filtering", SHORT, sample=1)
    assert found["records"] == 60
    assert found["reasons_of_the_stage"] == [
        {"fate": "removed", "reason": SHORT, "records": 60},
        {"fate": "removed", "reason": "curly_bracket", "records": 1},
    ]


@pytest.mark.parametrize(
    ("stage", "reason", "message"),
    [
        pytest.param(
            "packing", SHORT, "no stage 'packing' with a ledger; it has document_import", id="stage"
        ),
        pytest.param("", SHORT, "no stage '' with a ledger", id="empty stage"),
        pytest.param(
            "quality_filtering",
            "'; DROP TABLE x; --",
            "gave no reason .*; its reasons are: gopher_short_doc \\(60\\), curly_bracket \\(1\\)",
            id="reason",
        ),
        pytest.param("document_import", SHORT, "its reasons are: none", id="stage that removed nothing"),
    ],
)
def test_an_unknown_stage_or_reason_is_refused_with_what_there_is(hand, make, stage, reason, message):
    with pytest.raises(AuditError, match=message):
        why(many(hand, make), stage, reason)


def test_near_misses_of_short_documents_are_the_kept_ones_with_the_fewest_words(tiny_ledger):
    node = tiny_ledger.node("quality_filtering")
    noted = tiny_ledger.rows(tiny_ledger.annotations(node, "id", "fate", SHORT))
    counts = {row["id"]: row[SHORT] for row in noted if row["fate"] == "kept"}
    found = why(tiny_ledger, "quality_filtering", SHORT, sample=5)
    fewest = sorted(counts, key=lambda identity: (counts[identity], identity))[:5]
    assert [row["id"] for row in found["near_misses"]] == fewest
    assert [row["value"] for row in found["near_misses"]] == [f"{counts[i]:.6g}" for i in fewest]
    assert found["compared"] == len(counts) < MOST_COMPARED
    assert min(counts.values()) >= 50 > max(float(row["value"].split()[0]) for row in found["sample"])


def noting(make, values: dict[str, float]):
    """Writes annotations of kept documents, with the number of words on record."""
    schema = pa.schema([*ANNOTATION_SCHEMA, pa.field(SHORT, pa.float64())])
    rows = [make.document(name) | {"fate": "kept", SHORT: value} for name, value in values.items()]
    return lambda folder: make.table(folder / "annotations" / "part-00000.parquet", schema, rows)


def test_near_misses_have_the_values_that_were_recorded(hand, make):
    kept = [make.document(name) for name in "abc"]
    fill = noting(make, {"a": 90, "b": 51, "c": 70})
    good = hand.output("quality_filtering", kept, [make.lost("d", SHORT, "30 < 50")], label="web", fill=fill)
    near = why(hand.ledger(good), "quality_filtering", SHORT)["near_misses"]
    assert [(row["id"], row["value"]) for row in near] == [("b", "51"), ("c", "70"), ("a", "90")]


def test_outputs_without_recorded_values_have_no_near_misses(hand, make):
    found = why(many(hand, make), "quality_filtering", SHORT)
    assert (found["near_misses"], found["compared"]) == ([], 0)


def test_near_misses_of_a_language_have_the_lowest_scores(hand, make):
    kept = [make.document(f"{n}", language="en", language_score=0.65 + n / 100) for n in range(1, 30)]
    gone = [make.lost("de", "language", "de 0.9100"), make.lost("en", "language", "en 0.6400")]
    ledger = hand.ledger(hand.output("language_identification", kept, gone))
    near = why(ledger, "language_identification", "language", sample=3)["near_misses"]
    assert [row["value"] for row in near] == ["0.66", "0.67", "0.68"]


def test_near_misses_of_duplicates_are_the_most_similar_pairs(hand, make):
    words = [f"{one}{two}" for one in "abcdefgh" for two in "aeioulmn"]  # digits would all be the same
    texts = {"a": words, "b": [*words[:50], *"vwxyz"], "c": words[::-1], "d": ["too", "short"]}
    kept = [make.document(name, text=" ".join(text)) for name, text in texts.items()]
    gone = [make.lost("e", "near_duplicate", "0.95 of a")]
    near = why(hand.ledger(hand.output("deduplication", kept, gone)), "deduplication", "near_duplicate")
    best = near["near_misses"][0]
    assert {best["id"], best["value"].split(" of ")[1]} == {"a", "b"}
    assert 0.5 < float(best["value"].split()[0]) < 1


def test_a_reason_without_a_number_has_no_near_misses(hand, make):
    ledger = hand.ledger(
        hand.output(
            "document_import", [make.document("a")], [make.lost("b", "empty"), make.lost("c", "empty")]
        )
    )
    found = why(ledger, "document_import", "empty")
    assert (found["near_misses"], found["compared"], found["records"]) == ([], 0, 2)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        pytest.param("47", 47, id="count"),
        pytest.param("0.490385", 0.490385, id="share"),
        pytest.param("0.490385 > 0.3", 0.490385, id="share above a threshold"),
        pytest.param("1.23457e+06", 1_234_570, id="large"),
        pytest.param("1e-05", 0.00001, id="small"),
        pytest.param("0.91 of a1b2", 0.91, id="number before a name"),
        pytest.param("", 0, id="none"),
    ],
)
def test_values_are_read_as_they_were_written(hand, make, value, number):
    node = hand.output("quality_filtering", [make.document("a")], [make.lost("b", SHORT, value)])
    assert _removed_values(hand.ledger(node), [node], SHORT).tolist() == [number]
