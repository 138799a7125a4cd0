"""The published model: the checkpoint's weights, and a card and a lineage that are true of them."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from model.checkpoint import load
from tasks.model_publication import count_parameters
from tasks.store import Store, file_digest


@pytest.fixture
def store(tiny_run: SimpleNamespace) -> Store:
    """The tiny run's store."""
    return Store(tiny_run.home / "store")


@pytest.fixture
def folder(tiny_run: SimpleNamespace, store: Store) -> Path:
    """The publication of the tiny run's model."""
    return store.path(tiny_run.outcome.outputs["published_model"])


@pytest.fixture
def facts(folder: Path) -> dict[str, Any]:
    """What `lineage.json` says of the model."""
    return json.loads((folder / "lineage.json").read_text("utf-8"))["facts"]


def safetensors(path: Path, **shapes: list[int]) -> Path:
    """Writes a file of zeros in the safetensors format by hand: length of the header, header, data."""
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    data = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(place))
    return path


@pytest.mark.parametrize(
    ("shapes", "count"),
    [
        pytest.param({"a": [2, 3]}, 6, id="matrix"),
        pytest.param({"a": [2, 3], "b": [5], "c": [2, 2, 2]}, 19, id="several"),
        pytest.param({"a": []}, 1, id="scalar"),
        pytest.param({"a": [0, 7], "b": [1]}, 1, id="empty_tensor"),
        pytest.param({}, 0, id="no_tensor"),
    ],
)
def test_parameters_are_the_numbers_in_the_file(tmp_path: Path, shapes: dict[str, list[int]], count: int):
    assert count_parameters(safetensors(tmp_path / "model.safetensors", **shapes)) == count


def test_the_files_are_those_of_the_checkpoint(tiny_run: SimpleNamespace, store: Store, folder: Path):
    checkpoint = store.path(tiny_run.outcome.outputs["checkpoint"]) / "checkpoint"
    names = {path.name for path in checkpoint.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
    for name in names:
        assert file_digest(folder / name) == file_digest(checkpoint / name)


def test_the_folder_loads_as_the_model_with_the_parameters_that_it_names(folder: Path, facts: dict[str, Any]):
    model, config = load(folder)
    assert facts["parameters"] == sum(weights.numel() for weights in model.parameters())
    assert facts["vocabulary_size"] == config["vocabulary_size"] == model.token_embedding.num_embeddings
    assert facts["model"] == config["model"]


def test_the_facts_name_what_the_model_was_made_from(tiny_run: SimpleNamespace, facts: dict[str, Any]):
    outputs = tiny_run.outcome.outputs
    names = {"checkpoint": "checkpoint", "data": "tokens", "tokenizer": "tokenizer", "corpus": "corpus"}
    for fact, output in names.items():
        assert facts[fact] == outputs[output].digest
    assert facts["corpus_key"] == outputs["published_corpus"].key
    assert (facts["preset"], facts["code"]) == (tiny_run.record.name, tiny_run.record.code)


def test_the_tokens_are_those_that_the_training_saw(
    tiny_run: SimpleNamespace, store: Store, facts: dict[str, Any]
):
    training = tiny_run.record.settings["training"]
    expected = training["steps"] * training["rows_per_step"] * training["model"]["max_context"]
    assert facts["tokens"] == expected
    assert store.report(tiny_run.outcome.outputs["checkpoint"])["measures"]["tokens"] == expected


def test_the_card_has_losses_and_digests(
    tiny_run: SimpleNamespace, store: Store, folder: Path, facts: dict[str, Any]
):
    card = (folder / "README.md").read_text("utf-8")
    losses = store.path(tiny_run.outcome.outputs["checkpoint"]) / "losses.jsonl"
    points = [json.loads(line) for line in losses.read_text("utf-8").splitlines()]
    assert f"| 0 | {points[0]['train_loss']:.4f} |" in card
    validated = [point for point in points if "val_loss" in point]
    assert len(validated) > 1
    for point in validated:
        assert f"| {point['step']:.0f} | {point['train_loss']:.4f} | {point['val_loss']:.4f} |" in card
    for name in ("checkpoint", "data", "tokenizer", "corpus"):
        assert f"| {name} | {facts[name]} |" in card
    assert f"A GPT with {facts['parameters']:,} parameters" in card
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "tokenmill"


def test_the_card_has_the_sample(tiny_run: SimpleNamespace, store: Store, folder: Path):
    sample = store.path(tiny_run.outcome.outputs["sample"]) / "generation.json"
    text = json.loads(sample.read_text("utf-8"))["text"]
    card = (folder / "README.md").read_text("utf-8")
    assert f"## Sample\n\nPrompt {chr(39)}The{chr(39)}; seed 0" in card
    assert f"    {text.splitlines()[0]}" in card


def test_the_lineage_is_that_of_the_run(tiny_run: SimpleNamespace, folder: Path):
    nodes = [node.model_dump(mode="json") for node in tiny_run.record.nodes]
    lineage = json.loads((folder / "lineage.json").read_text("utf-8"))["lineage"]
    assert lineage == nodes[:-1]
    assert nodes[-1]["stage"] == "model_publication"


def test_no_path_of_this_machine_is_in_the_card_or_the_lineage(tiny_run: SimpleNamespace, folder: Path):
    for name in ("README.md", "lineage.json", "config.json", "manifest.json"):
        text = (folder / name).read_text("utf-8")
        for place in (tiny_run.home, Path(__file__).parents[2]):
            assert str(place) not in text, name
