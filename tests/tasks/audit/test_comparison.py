"""Compare: which documents and tokens two corpora share, and what made the difference."""

import pytest

from tasks.audit.comparison import compare, differences

EMPTY = {"in_both": 0, "only_in_a": 0, "only_in_b": 0}


def corpus(hand, make, ids: dict, gone: dict, *, version: int = 1, tokens: int = 3, **settings):
    """A run whose import read `ids` (by source), whose filter removed `gone`, and that packed the rest."""
    rows = [
        make.document(i, source, file_path=f"{n}")
        for source, found in ids.items()
        for n, i in enumerate(found)
    ]
    kept = [row for row in rows if row["id"] not in gone]
    lost = [make.lost(row["id"], gone[row["id"]], source=row["source"]) for row in rows if row["id"] in gone]
    first = hand.output("document_import", rows)
    good = hand.output("quality_filtering", kept, lost, inputs=[first], version=version)
    split = hand.output("document_split", {"train-00000": kept}, inputs=[good])
    nodes = [first, good, split]
    if tokens:
        sources = dict.fromkeys(row["source"] for row in kept)
        shards = {
            f"train-{n:05d}": (source, [(row["id"], tokens) for row in kept if row["source"] == source])
            for n, source in enumerate(sources)
        }
        nodes.append(hand.packing(shards, split))
    return hand.ledger(*nodes, **settings)


def test_documents_and_tokens_of_two_corpora_are_told_apart(hand, make):
    one = corpus(hand, make, {"web": "abcdef"}, {"f": "gopher_short_doc"}, tokens=3)
    other = corpus(hand, make, {"web": "abcdexyz"}, {"d": "gopher_short_doc", "e": "curly_bracket"}, tokens=5)
    found = compare(one, other)
    assert found["documents"] == {
        "in_both": 3,
        "only_in_a": 2,
        "only_in_b": 3,
        "tokens_in_both_as_in_a": 9,
        "tokens_in_both_as_in_b": 15,
        "tokens_only_in_a": 6,
        "tokens_only_in_b": 15,
    }
    assert found["only_in_a"] == [
        {"stage": "quality_filtering", "reason": "curly_bracket", "documents": 1, "tokens": 3},
        {"stage": "quality_filtering", "reason": "gopher_short_doc", "documents": 1, "tokens": 3},
    ]
    assert found["only_in_b"] == [{"stage": "not read", "reason": "", "documents": 3, "tokens": 15}]


def test_comparing_the_other_way_round_swaps_the_sides(hand, make):
    one = corpus(hand, make, {"web": "abc"}, {"c": "r"})
    other = corpus(hand, make, {"web": "bcd"}, {"d": "s"})
    there, back = compare(one, other), compare(other, one)
    assert (there["only_in_a"], there["only_in_b"]) == (back["only_in_b"], back["only_in_a"])
    assert there["documents"]["in_both"] == back["documents"]["in_both"] == 1
    assert (there["a"], there["b"]) == (back["b"], back["a"])


def test_a_corpus_differs_in_nothing_from_itself(tiny_ledger):
    found = compare(tiny_ledger, tiny_ledger)
    (kept,) = tiny_ledger.rows(f"SELECT count(*) AS n FROM ({tiny_ledger.fates('id')}) WHERE fate = 'kept'")
    assert found["documents"]["in_both"] == kept["n"] > 0
    assert found["documents"]["tokens_in_both_as_in_a"] == found["documents"]["tokens_in_both_as_in_b"] > 0
    assert {found["documents"][name] for name in EMPTY if name != "in_both"} == {0}
    assert [found[name] for name in ("only_in_a", "only_in_b", "settings", "versions")] == [[]] * 4
    assert found["a"]["key"] == tiny_ledger.run.last("document_split").key


def test_an_id_that_two_sources_share_is_two_documents(hand, make):
    one = corpus(hand, make, {"web": "ab", "books": "a"}, {})
    other = corpus(hand, make, {"web": "a", "books": "ab"}, {})
    found = compare(one, other)["documents"]
    assert {name: found[name] for name in EMPTY} == {"in_both": 2, "only_in_a": 1, "only_in_b": 1}


def test_documents_that_share_an_id_in_a_source_are_counted_once_each(hand, make):
    one, other = corpus(hand, make, {"web": "aaab"}, {}), corpus(hand, make, {"web": "aab"}, {})
    found = compare(one, other)["documents"]
    assert {name: found[name] for name in EMPTY} == {"in_both": 3, "only_in_a": 1, "only_in_b": 0}
    assert found["tokens_in_both_as_in_a"] == 9
    assert found["tokens_only_in_a"] == 3


def test_corpora_without_tokens_are_compared_by_documents(hand, make):
    one, other = (corpus(hand, make, {"web": ids}, {}, tokens=0) for ids in ("ab", "bc"))
    found = compare(one, other)
    assert {name: found["documents"][name] for name in EMPTY} == dict.fromkeys(EMPTY, 1)
    assert found["documents"]["tokens_only_in_a"] is None
    assert found["only_in_a"][0]["tokens"] is None


def test_settings_and_versions_that_differ_are_named(hand, make):
    section = {"gopher_quality": {"min_doc_words": 30}, "c4": None}
    one = corpus(hand, make, {"web": "a"}, {}, name="one", execution={"workers": 1})
    other = corpus(
        hand,
        make,
        {"web": "a"},
        {},
        name="two",
        version=2,
        quality_filtering=section,
        execution={"workers": 9},
    )
    found = compare(one, other)
    names = {row["name"]: (row["a"], row["b"]) for row in found["settings"]}
    assert names["quality_filtering.gopher_quality.min_doc_words"] == (50, 30)
    assert names["quality_filtering.c4.min_num_sentences"] == (5, None)
    assert {name.split(".")[1] for name in names} == {"gopher_quality", "c4"}
    assert found["versions"] == [{"name": "quality_filtering.version", "a": 1, "b": 2}]
    assert (found["a"]["name"], found["b"]["name"]) == ("one", "two")


def source(name: str, **fields) -> dict:
    """A source as settings hold it."""
    return {"name": name, "base": ""} | fields


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1}}, [], id="nothing"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"], id="value"),
        pytest.param({"a": {"b": 1}}, {"a": {}}, ["a.b"], id="only in one"),
        pytest.param({"a": [1, 2]}, {"a": [2, 1]}, ["a"], id="order of a list"),
        pytest.param({"name": 1, "execution": {"workers": 1}}, {}, [], id="what changes no byte"),
        pytest.param(
            {"sources": [source("x"), source("y")]}, {"sources": [source("y"), source("x")]}, [], id="order"
        ),
        pytest.param(
            {"sources": [source("x")]},
            {"sources": [source("w"), source("x", base="/d")]},
            ["sources.w.base", "sources.w.name", "sources.x.base"],
            id="sources by name",
        ),
    ],
)
def test_differences_are_named_by_their_path(one, other, names):
    assert [row["name"] for row in differences(one, other)] == names
