"""The evaluation as a stage: measures in its report, computed once for each setting."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from prefect import flow
from tokenizers import Tokenizer, models

from model.architecture import GPT
from model.checkpoint import export
from pipeline_config.errors import StageError
from pipeline_config.settings import Evaluation, Execution, ModelSettings
from tasks.evaluation import evaluate_checkpoint
from tasks.stage import StageRunner
from tasks.store import StageOutput, Store

ROW, VOCABULARY = 8, 10


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def checkpoint(store: Store) -> StageOutput:
    torch.manual_seed(0)
    model = GPT(ModelSettings(layers=1, heads=1, width=8, max_context=ROW), VOCABULARY)
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate("abcdefghij")}, []))
    export(store.building_folder("training", "c" * 64) / "checkpoint", model, tokenizer.to_str().encode(), {})
    return store.commit("training", "c" * 64, {}, "all")


def tokens(store: Store, count: int = 41) -> StageOutput:
    folder = store.building_folder("packing", "d" * 64)
    np.resize(np.arange(VOCABULARY, dtype="<u2"), count).tofile(folder / "web.ds")
    shard = {"file": "web.ds", "split": "validation", "source": "web", "tokens": count}
    described = {"vocabulary_size": VOCABULARY, "token_bytes": 2, "shards": [shard]}
    (folder / "tokens.json").write_text(json.dumps(described))
    return store.commit("packing", "d" * 64, {}, "all")


def evaluated(store: Store, *inputs: StageOutput, **settings: int) -> tuple[StageOutput, bool]:
    """The output of the stage, and whether it was there already."""
    results = []

    def stage(*arguments: Any, **more: Any) -> StageOutput:
        results.append(StageRunner(store, Execution()).run(*arguments, **more))
        return results[0].output

    @flow(name="test-evaluation")
    def body() -> None:
        evaluate_checkpoint(SimpleNamespace(stage=stage), *inputs, Evaluation(**settings))

    body()
    return results[0].output, results[0].cached


def test_the_report_has_the_measures_of_all_rows_and_the_file_those_of_each_source(store: Store) -> None:
    inputs = checkpoint(store), tokens(store)
    output, cached = evaluated(store, *inputs)
    measures = json.loads((store.path(output) / "evaluation.json").read_text())
    assert store.report(output)["measures"] == measures["all"] == measures["web"]
    assert (measures["web"]["rows"], measures["web"]["tokens"], measures["web"]["bytes"]) == (5, 40, 40)
    assert not cached
    assert evaluated(store, *inputs) == (output, True)
    other, cached = evaluated(store, *inputs, max_rows=2)
    assert (store.report(other)["measures"]["rows"], cached) == (2, False)


def test_an_evaluation_that_fails_says_why_and_leaves_nothing(store: Store) -> None:
    inputs = checkpoint(store), tokens(store, count=ROW)
    with pytest.raises(StageError, match=r"(?s)exit code 1.*the validation split has no row of 8 tokens"):
        evaluated(store, *inputs)
    assert list((store.root / "evaluation").iterdir()) == []
