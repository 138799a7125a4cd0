"""The main path, end to end, on a crawl that is made in seconds."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from flows.command_line import Outcome
from flows.train_language_model import train_language_model
from pipeline_config.settings import Settings
from tasks.store import Store

STAGES = [
    "sample_crawl",
    "url_filtering",
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    "document_split",
    "bpe_training",
    "packing",
    "corpus_publication",
    "training",
    "text_generation",
    "model_publication",
]
UP_TO_TOKENS = STAGES[: STAGES.index("training")]


@pytest.fixture
def first_home(tiny_run: SimpleNamespace) -> Path:
    return tiny_run.home


@pytest.fixture
def first(tiny_run: SimpleNamespace) -> Outcome:
    """The outcome of one undisturbed run."""
    return tiny_run.outcome


@pytest.fixture
def rerun(
    first: Outcome, first_home: Path, tiny: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs the main path again on the first run's data folder."""
    monkeypatch.setenv("TOKENMILL_HOME", str(first_home))
    return lambda *overrides: train_language_model(tiny(*overrides))


def computed(outcome: Outcome) -> list[str]:
    """Stages that were not cached, from the funnel."""
    return [line.split()[0] for line in outcome.funnel.splitlines()[1:] if not line.endswith("cached")]


def test_every_stage_balances_its_books(first: Outcome, first_home: Path):
    assert computed(first) == STAGES
    for report in (json.loads(path.read_text()) for path in first_home.glob("store/*/*/report.json")):
        if "read" in report:
            lost = sum(report["removed"].values()) + sum(report["failed"].values())
            assert report["read"] == report["kept"] + lost


def test_the_ledger_names_every_record_that_was_not_kept(first: Outcome, first_home: Path):
    for folder in (path.parent for path in first_home.glob("store/*/*/report.json")):
        tables = sorted(folder.glob("removed/*.parquet"))
        report = json.loads((folder / "report.json").read_text())
        if tables:
            rows = [row for table in tables for row in pq.read_table(table).to_pylist()]
            assert len(rows) == report["read"] - report["kept"]
            assert all(row["id"] and row["reason"] for row in rows)


def test_a_second_run_computes_nothing(rerun: Callable[..., Outcome], first: Outcome):
    again = rerun()
    assert computed(again) == []
    assert again.outputs == first.outputs


def test_a_changed_threshold_recomputes_its_stage_and_what_follows(rerun: Callable[..., Outcome]):
    changed = rerun("quality_filtering.gopher_quality.min_doc_words=80")
    assert computed(changed) == STAGES[STAGES.index("quality_filtering") :]


def test_a_changed_setting_that_changes_no_byte_stops_there(rerun: Callable[..., Outcome]):
    changed = computed(rerun("text_extraction.page_cpu_seconds=19"))
    assert changed == ["text_extraction", "corpus_publication", "model_publication"]  # they tell the lineage


def test_how_the_work_is_done_changes_no_key(rerun: Callable[..., Outcome]):
    assert computed(rerun("execution.workers=2", "execution.max_failed_share=0.5")) == []


def test_a_deleted_output_is_made_again_and_nothing_else(
    rerun: Callable[..., Outcome], first: Outcome, first_home: Path
):
    folder = Store(first_home / "store").path(first.outputs["tokenizer"])
    shutil.rmtree(folder)
    assert computed(rerun()) == ["bpe_training"]
    assert folder.is_dir()


def test_a_cut_shard_is_made_again(rerun: Callable[..., Outcome], first: Outcome, first_home: Path):
    corpus = Store(first_home / "store").path(first.outputs["corpus"])
    shard = corpus / "documents" / "train-00000.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    assert computed(rerun()) == ["document_split", "corpus_publication"]  # which links the same file
    assert shard.read_bytes() == whole


def test_the_loss_starts_near_ln_of_the_vocabulary_and_falls(first: Outcome, first_home: Path):
    measures = Store(first_home / "store").report(first.outputs["checkpoint"])["measures"]
    assert measures["first_train_loss"] == pytest.approx(math.log(measures["vocabulary_size"]), abs=0.1)
    assert measures["last_train_loss"] < measures["first_train_loss"] - 0.3
    assert measures["last_val_loss"] < measures["first_val_loss"] - 0.3


def test_no_validation_document_is_in_the_training_shards(first: Outcome, first_home: Path):
    index = Store(first_home / "store").path(first.outputs["tokens"]) / "index"
    ids = {
        split: {row for path in index.glob(f"{split}-*") for row in pq.read_table(path)["id"].to_pylist()}
        for split in ("train", "validation")
    }
    assert ids["train"]
    assert ids["validation"]
    assert not ids["train"] & ids["validation"]


def test_another_folder_and_another_number_of_workers_give_the_same_bytes(
    first: Outcome, first_home: Path, tiny: Callable[..., Settings], home: Path
):
    train_language_model(tiny("execution.workers=2"))
    for stage in UP_TO_TOKENS:
        [ours] = (home / "store" / stage).glob("[0-9a-f]*")
        theirs = first_home / "store" / stage / ours.name
        names = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file()}
        for name in names:
            if not name.name.startswith("_"):
                assert (ours / name).read_bytes() == (theirs / name).read_bytes(), (stage, name)
