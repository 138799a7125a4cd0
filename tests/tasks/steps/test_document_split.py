"""The split: by the id alone, stable, and as large as asked."""

import pytest
from datatrove.data import Document

from pipeline_config.settings import DocumentSplit
from tasks.steps.document_split import TRAIN, VALIDATION, SplitRoute, split_of
from tasks.steps.shards import WriteShard, read_documents
from tasks.store import digest_of

IDS = [f"urn:uuid:{number:08x}" for number in range(10_000)]
GOLDEN = "029be5ec014ca621d09bf15531b0315b503458e9aa13ba0fc6547c1a083fd72a"


def held_out(identities, **settings) -> set[str]:
    return {name for name in identities if split_of(name, DocumentSplit(**settings)) == VALIDATION}


@pytest.mark.parametrize("share", [0.001, 0.02, 0.1, 0.5, 0.99])
def test_the_share_is_kept_within_four_standard_deviations(share):
    deviation = (share * (1 - share) * len(IDS)) ** 0.5
    assert abs(len(held_out(IDS, validation_share=share)) - share * len(IDS)) < 4 * deviation


def test_a_split_is_stable_when_documents_are_added_or_removed():
    assert held_out(IDS) & set(IDS[::3]) == held_out(IDS[::3])
    assert held_out(reversed(IDS)) == held_out(IDS)


def test_a_larger_share_holds_out_the_same_documents_and_more():
    assert held_out(IDS, validation_share=0.02) < held_out(IDS, validation_share=0.05)


def test_another_seed_holds_out_other_documents():
    one, other = held_out(IDS, seed=0), held_out(IDS, seed=1)
    assert len(one & other) < 20 < len(one)


def test_every_document_is_in_one_of_two_splits():
    assert {split_of(name, DocumentSplit(validation_share=0.5)) for name in IDS} == {TRAIN, VALIDATION}


@pytest.mark.parametrize("name", ["", "ünïcode", "a" * 10_000, "line\nbreak"])
def test_any_id_has_a_split(name):
    assert split_of(name, DocumentSplit()) in (TRAIN, VALIDATION)


def test_the_writer_puts_each_document_in_the_file_of_its_split(tmp_path, run_step):
    settings = DocumentSplit(validation_share=0.3)
    writer = WriteShard(str(tmp_path), route=SplitRoute(settings), routes=(TRAIN, VALIDATION))
    run_step(writer, [Document(text="t", id=name) for name in IDS[:200]])
    for split in (TRAIN, VALIDATION):
        written = [document.id for document in read_documents(tmp_path / f"documents/{split}-00000.parquet")]
        assert written == [name for name in IDS[:200] if split_of(name, settings) == split]


def test_golden():
    splits = digest_of(sorted(held_out(IDS)))
    assert splits == GOLDEN, "behaviour changed: raise the version in tasks/document_split.py"
