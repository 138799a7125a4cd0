"""The published corpus: it loads as the documents that it is, and tells where they come from."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.store import Store, file_digest, is_sidecar

Row = dict[str, Any]
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def folder(tiny_run: SimpleNamespace) -> Path:
    """The publication of the tiny run."""
    return Store(tiny_run.home / "store").path(tiny_run.outcome.outputs["published_corpus"])


@pytest.fixture
def described(folder: Path) -> Row:
    """`corpus.json`."""
    return json.loads((folder / "corpus.json").read_text("utf-8"))


@pytest.fixture
def corpus(tiny_run: SimpleNamespace) -> dict[str, list[Row]]:
    """The documents of the corpus by split, from the store."""
    documents = Store(tiny_run.home / "store").path(tiny_run.outcome.outputs["corpus"]) / "documents"
    return {
        split: [
            row
            for path in sorted(documents.glob(f"{split}-*.parquet"))
            for row in pq.read_table(path).to_pylist()
        ]
        for split in ("train", "validation")
    }


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`datasets.load_dataset`, without network, with a cache of the test's own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True, raising=False)
    return lambda *arguments, **named: datasets.load_dataset(*arguments, cache_dir=str(tmp_path), **named)


def test_the_folder_loads_as_a_dataset_with_its_splits(
    folder: Path, corpus: dict[str, list[Row]], load: Callable[..., Any]
):
    loaded = load(str(folder), streaming=True)
    assert {split: list(rows) for split, rows in loaded.items()} == corpus
    assert all(corpus.values())


def test_the_files_load_without_the_card(
    folder: Path, corpus: dict[str, list[Row]], load: Callable[..., Any]
):
    files = {split: str(folder / "data" / f"{split}-*.parquet") for split in corpus}
    loaded = load("parquet", data_files=files)
    assert {split: rows.to_list() for split, rows in loaded.items()} == corpus


def test_the_card_names_every_file_that_holds_documents(folder: Path, corpus: dict[str, list[Row]]):
    header = yaml.safe_load((folder / "README.md").read_text("utf-8").split("---\n")[1])
    [config] = header["configs"]
    for part in config["data_files"]:
        rows = sum(pq.read_metadata(folder / name).num_rows for name in part["path"])
        assert rows == len(corpus[part["split"]])
    assert {part["split"] for part in config["data_files"]} == corpus.keys()


def test_documents_are_links_where_the_disk_allows_it(folder: Path, tiny_run: SimpleNamespace):
    documents = Store(tiny_run.home / "store").path(tiny_run.outcome.outputs["corpus"]) / "documents"
    for path in sorted(documents.glob("*.parquet")):
        assert os.path.samefile(path, folder / "data" / path.name)


def test_the_description_names_the_content_of_every_source(described: Row, tiny_run: SimpleNamespace):
    [source] = described["sources"]
    assert (source["name"], source["kind"]) == ("documentation", "installed_documentation")
    assert (source["dump"], source["revision"], source["licence"]) == ("TINY", "", "unknown")
    assert (source["weight"], source["share_of_training_tokens"]) == (1.0, 1.0)
    [crawl] = tiny_run.record.at("sample_crawl")
    warcs = sorted((tiny_run.home / "store" / "sample_crawl" / crawl.key).rglob("*.warc.gz"))
    assert [part["content"] for part in source["content"]] == [file_digest(path) for path in warcs]
    assert len(warcs) == 2


def test_the_description_tells_the_lineage_up_to_the_tokens(described: Row, tiny_run: SimpleNamespace):
    nodes = [node.model_dump(mode="json") for node in tiny_run.record.nodes]
    stages = [node["stage"] for node in nodes]
    assert described["lineage"] == nodes[: stages.index("corpus_publication")]
    assert described["digest"] == tiny_run.outcome.outputs["corpus"].digest
    assert described["versions"]["deduplication.version"] == 2


def test_the_recipe_is_that_of_the_corpus(described: Row, tiny_run: SimpleNamespace):
    recipe, settings = described["recipe"], tiny_run.record.settings
    left_out = {"execution", "training", "text_generation", "evaluation"}
    left_out |= {"corpus_publication", "model_publication"}
    assert recipe.keys() == settings.keys() - left_out
    for name in recipe.keys() - {"sources"}:
        expected = settings[name]
        if name == "url_filtering":
            expected = {field: value for field, value in expected.items() if field != "ut1"}  # a place
        assert recipe[name] == expected
    assert recipe["sources"].keys() == {"documentation"}
    assert not {"base", "takedown"} & recipe["sources"]["documentation"].keys()


def test_the_splits_add_up_to_the_documents(described: Row, corpus: dict[str, list[Row]]):
    assert {row["split"]: row["documents"] for row in described["splits"]} == {
        split: len(rows) for split, rows in corpus.items()
    }


def test_no_path_of_this_machine_is_in_any_file(folder: Path, tiny_run: SimpleNamespace):
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", "report.html", "corpus.json", "manifest.json"} < names
    for path in (path for path in folder.rglob("*") if path.is_file() and not is_sidecar(path)):
        rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else path.read_text("utf-8")
        shown = json.dumps(rows)
        for place in (tiny_run.home, PROJECT, Path.home() / ".cache"):
            assert str(place) not in shown, path
